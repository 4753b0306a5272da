// A client that shares nothing with Brigade: Node's own fetch. It enqueues, waits for the message, and acks it.
const api = `${process.argv[2]}/v1/queue`;

async function post(path, body, headers = {}) {
  const answer = await fetch(`${api}/${path}`, {
    method: "POST",
    headers: { "Content-Type": "application/json", ...headers },
    body: JSON.stringify(body),
  });
  const value = await answer.json();
  if (!answer.ok) throw new Error(`${path}: ${answer.status} ${value.code}: ${value.message}`);
  return value;
}

const settlement = ({ id, ref, lease }) => ({ queue: "node", id, ref, token: lease.token, version: lease.version });

await post("open", { queue: "node" });
const waiting = post("dequeue", { queue: "node", wait: 60, owner: "node" });
const receipt = await post("enqueue", { queue: "node", payload: { n: 1 } }, { "X-Correlation-Id": "from-node" });
const [message] = (await waiting).messages;
const acked = await post("ack", { ...settlement(message), result: { ok: true } });

// A stream, read line by line, until its limit.
await post("enqueue", { queue: "node", messages: [1, 2, 3].map((payload) => ({ payload })) });
const stream = await fetch(`${api}/subscribe`, {
  method: "POST",
  body: JSON.stringify({ queue: "node", limit: 3, prefetch: 1 }),
});
const seen = [];
let rest = "";
for await (const chunk of stream.body.pipeThrough(new TextDecoderStream())) {
  const lines = (rest + chunk).split("\n");
  rest = lines.pop();
  for (const line of lines.map((text) => JSON.parse(text))) {
    if (line.type !== "message") continue;
    seen.push(line.message.payload);
    await post("ack", settlement(line.message));
  }
}

const again = await fetch(`${api}/ack`, { method: "POST", body: JSON.stringify(settlement(message)) });
console.log(
  JSON.stringify({
    same: message.id === receipt.id,
    payload: message.payload,
    correlation: message.correlation_id,
    state: acked.state,
    seen,
    stale: [again.status, (await again.json()).code],
  }),
);
