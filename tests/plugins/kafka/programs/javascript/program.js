// kafkajs at a cluster: node program.js SERVERS NAME. Ends with "done" if all is as it must be.
import kafkajs from "kafkajs";

const { Kafka, CompressionTypes, logLevel } = kafkajs;
const [servers, name] = process.argv.slice(2);
const kafka = new Kafka({ clientId: "kafkajs", brokers: servers.split(","), logLevel: logLevel.ERROR });

function check(holds, what) {
  if (!holds) throw new Error(what);
}

/** What is read of each topic by a new member of a group. */
async function read(groupId, counts, { uncommitted = false } = {}) {
  const consumer = kafka.consumer({ groupId, readUncommitted: uncommitted, maxWaitTimeInMs: 500 });
  const found = Object.fromEntries(Object.keys(counts).map((topic) => [topic, []]));
  let missing = Object.values(counts).reduce((sum, count) => sum + count, 0);
  await consumer.connect();
  await consumer.subscribe({ topics: Object.keys(counts), fromBeginning: true });
  await new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`${groupId}: ${missing} records are missing`)), 30000);
    const eachMessage = async ({ topic, message }) => {
      found[topic].push(message);
      missing -= 1;
      if (missing === 0) {
        clearTimeout(timer);
        resolve();
      }
    };
    consumer.run({ eachMessage }).catch(reject);
  });
  await consumer.disconnect();
  return found;
}

const admin = kafka.admin();
await admin.connect();
await admin.createTopics({
  topics: ["plain", "gzip", "acks-0", "acks-1", "idempotent", "in", "out"].map((each) => ({
    topic: `${name}-${each}`, numPartitions: 1, replicationFactor: 3,
  })),
});
check((await admin.describeCluster()).brokers.length === 3, "three nodes");

async function write(topic, count, options = {}, settings = {}) {
  const producer = kafka.producer(settings);
  await producer.connect();
  const messages = Array.from({ length: count }, (_, i) => ({ key: `k${i}`, value: `v${i}`, headers: { h: "1" } }));
  const told = await producer.send({ topic, messages, ...options });
  await producer.disconnect();
  return told;
}

check((await write(`${name}-plain`, 50, { acks: -1 }))[0].baseOffset === "0", "the first offset");
await write(`${name}-gzip`, 50, { compression: CompressionTypes.GZIP });
await write(`${name}-acks-0`, 1);
await write(`${name}-acks-0`, 50, { acks: 0 });
await write(`${name}-acks-1`, 50, { acks: 1 });
await write(`${name}-idempotent`, 50, {}, { idempotent: true, maxInFlightRequests: 1 });
const ordered = ["plain", "gzip", "acks-1", "idempotent"];
const counts = Object.fromEntries(ordered.map((each) => [`${name}-${each}`, 50]));
const records = await read(`${name}-group`, { ...counts, [`${name}-acks-0`]: 51 });
for (const each of ordered)
  records[`${name}-${each}`].forEach((message, i) => {
    check(message.value.toString() === `v${i}` && message.offset === `${i}`, `${each}: record ${i}`);
    check(message.key.toString() === `k${i}` && message.headers.h.toString() === "1", `${each}: key and header`);
  });

const described = await admin.describeGroups([`${name}-group`]);
check(described.groups[0].state === "Empty", `the group: ${JSON.stringify(described)}`);
const offsets = await admin.fetchOffsets({ groupId: `${name}-group`, topics: [`${name}-plain`] });
check(offsets[0].partitions[0].offset === "50", `committed: ${JSON.stringify(offsets)}`);

const producer = kafka.producer({ transactionalId: name, maxInFlightRequests: 1, idempotent: true });
await producer.connect();
const first = await producer.transaction();
await first.send({ topic: `${name}-in`, messages: [{ value: "committed" }] });
await first.commit();
const second = await producer.transaction();
await second.send({ topic: `${name}-in`, messages: [{ value: "aborted" }] });
await second.abort();
const third = await producer.transaction();
await third.send({ topic: `${name}-in`, messages: [{ value: "behind" }] });
await third.sendOffsets({
  consumerGroupId: `${name}-txn`, topics: [{ topic: `${name}-in`, partitions: [{ partition: 0, offset: "1" }] }],
});
await third.commit();
await producer.disconnect();
// This client asks for offsets in a version that answers while the markers of a transaction are still on their way.
let kept;
for (let left = 100; left > 0; left--) {
  kept = await admin.fetchOffsets({ groupId: `${name}-txn`, topics: [`${name}-in`] });
  if (kept[0].partitions[0].offset !== "-1") break;
  await new Promise((resolve) => setTimeout(resolve, 100));
}
check(kept[0].partitions[0].offset === "1", `offsets of a transaction: ${JSON.stringify(kept)}`);
const committed = (await read(`${name}-committed`, { [`${name}-in`]: 2 }))[`${name}-in`];
check(committed.map((each) => each.value.toString()).join() === "committed,behind", "committed records");
await read(`${name}-all`, { [`${name}-in`]: 3 }, { uncommitted: true });

const listed = (await admin.listGroups()).groups.map((each) => each.groupId);
check(listed.includes(`${name}-group`), "the list of groups");
await admin.createPartitions({ topicPartitions: [{ topic: `${name}-out`, count: 3 }] });
const config = await admin.describeConfigs({
  includeSynonyms: false, resources: [{ type: kafkajs.ConfigResourceTypes.TOPIC, name: `${name}-out` }],
});
check(config.resources[0].configEntries.length > 0, "settings");
const ends = await admin.fetchTopicOffsets(`${name}-plain`);
check(ends[0].high === "50" && ends[0].low === "0", `ends: ${JSON.stringify(ends)}`);
await admin.deleteTopicRecords({ topic: `${name}-plain`, partitions: [{ partition: 0, offset: "10" }] });
check((await admin.fetchTopicOffsets(`${name}-plain`))[0].low === "10", "deleted records");
await admin.deleteGroups([`${name}-group`]);
await admin.deleteTopics({ topics: [`${name}-gzip`] });
await admin.disconnect();
console.log("done");
