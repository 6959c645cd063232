// KafkaJS as people use it: an idempotent writer, or a member of a group, until the pipe is closed.
//
//   node main.js writer|reader BOOTSTRAP TOPIC GROUP
//
// A writer prints `acked VALUE` for each record that was acknowledged, a reader `got PARTITION OFFSET VALUE` for each
// that it has handled, and commits it after that. Nothing is added to what KafkaJS does by itself.
//
// Each `send` has one record, so it goes to one broker. With several, KafkaJS 2.2.4 loses records: a broker that has
// answered for its part is not asked again, also when a partition whose broker failed has moved to it meanwhile
// (sendMessages.js, brokersWithoutResponse), and `send` succeeds.
"use strict";

const { Kafka, CompressionTypes, logLevel } = require("kafkajs");

const [role, bootstrap, topic, group] = process.argv.slice(2);
const kafka = new Kafka({
  clientId: `kafkajs-${role}`,
  brokers: bootstrap.split(","),
  logLevel: logLevel.ERROR,
  retry: { retries: 100, initialRetryTime: 100, maxRetryTime: 1000 },
});

let isOver = false;
process.stdin.resume(); // whoever started us closes our input when it is over
process.stdin.on("end", () => { isOver = true; });

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function write() {
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 });
  await producer.connect();
  for (let number = 0; !isOver; number += 1) {
    const messages = [{ key: `key-${number % 20}`, value: `${number}` }];
    await producer.send({ topic, acks: -1, compression: CompressionTypes.GZIP, messages });
    console.log(`acked ${number}`);
    await pause(5);
  }
  await producer.disconnect();
}

async function read() {
  const consumer = kafka.consumer({ groupId: group, sessionTimeout: 10000, heartbeatInterval: 1000 });
  await consumer.connect();
  await consumer.subscribe({ topics: [topic], fromBeginning: true });
  await consumer.run({
    autoCommitInterval: 200,
    eachMessage: async ({ partition, message }) => {
      console.log(`got ${partition} ${message.offset} ${message.value}`);
    },
  });
  while (!isOver) await pause(50);
  await consumer.disconnect();
}

(role === "writer" ? write() : read()).then(
  () => { console.log("done"); process.exit(0); },
  (error) => { console.error(error); process.exit(1); },
);
