"""The dashboard: pages for people, rendered here, live over one event stream a tab. Part of `brigade serve`."""
