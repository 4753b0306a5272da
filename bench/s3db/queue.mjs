// The queue of s3db.js in one process, driven by bench/s3.py over stdin and stdout, one line of JSON at a time.
//
//   node queue.mjs '{"endpoint": …, "bucket": …, "prefix": …, "key": …, "secret": …, "settings": {…}}'
//
// It says {"ready": true}; then each line it reads is a step, and each answer tells what the step did:
//   {"enqueue": 100, "text": …, "limit": 60} → {"done": 100, "seconds": …}
//   {"process": 100, "limit": 60}            → {"done": …, "seconds": …}
// Seconds are up to the last message that was done; `limit` ends a step that takes longer. It leaves when stdin closes.
import { createInterface } from "node:readline";
import { S3Client as AwsS3Client } from "@aws-sdk/client-s3";
import { Client, S3db } from "s3db.js/lite";
import { S3QueuePlugin } from "s3db.js/plugins/s3-queue.plugin";

const { endpoint, bucket, prefix, key, secret, settings } = JSON.parse(process.argv[2]);
const host = new URL(endpoint);
const connectionString = `${host.protocol}//${key}:${secret}@${host.host}/${bucket}/${prefix}`;
// With the version of its HTTP library that could be installed, deletes hung: so it gets the AWS SDK's own.
const client = new Client({
  connectionString,
  AwsS3Client: new AwsS3Client({
    endpoint,
    region: "us-east-1",
    forcePathStyle: true,
    credentials: { accessKeyId: key, secretAccessKey: secret },
  }),
});
const database = new S3db({ client, logLevel: "silent" });
await database.connect();
await database.createResource({ name: "tasks", attributes: { id: "string|required", text: "string|required" } });
const queue = new S3QueuePlugin({ resource: "tasks", autoStart: false, autoAcknowledge: true, logLevel: "silent", ...settings });
await database.usePlugin(queue);
const tasks = database.resources.tasks;

const now = () => performance.now() / 1000;

async function enqueue(count, text, limit) {
  const started = now();
  let made = 0;
  while (made < count && now() - started < limit) {
    await tasks.enqueue({ text });
    made += 1;
  }
  return { done: made, seconds: now() - started };
}

async function work(count, limit) {
  const started = now();
  const seen = new Set();
  let ended = started;
  await new Promise((resolve) => {
    const late = setTimeout(resolve, limit * 1000);
    queue.on("plg:s3-queue:message-completed", (event) => {
      seen.add(event.queueId);
      ended = now();
      if (seen.size >= count) {
        clearTimeout(late);
        resolve();
      }
    });
    tasks.startProcessing(async () => ({}), { concurrency: settings.concurrency });
  });
  // Stopping waits for a poll or a heartbeat: not what is measured, so it is left to the end of the process.
  return { done: seen.size, seconds: ended - started };
}

// The library may write to stdout too: answers start with a word of their own.
const say = (what) => process.stdout.write(`bench ${JSON.stringify(what)}\n`);

say({ ready: true });
for await (const line of createInterface({ input: process.stdin })) {
  const step = JSON.parse(line);
  say(step.enqueue ? await enqueue(step.enqueue, step.text, step.limit) : await work(step.process, step.limit));
}
process.exit(0);
