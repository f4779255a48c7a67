// Carries out each operation of the service by Microsoft's package, and prints what came of it, as JSON.

import { setTimeout as delay } from "node:timers/promises";

import {
  AccountSASPermissions,
  QueueClient,
  QueueSASPermissions,
  QueueServiceClient,
  StorageSharedKeyCredential,
  generateAccountSASQueryParameters,
  generateQueueSASQueryParameters,
  newPipeline,
} from "@azure/storage-queue";

const parts = Object.fromEntries(
  process.env.CONNECTION_STRING.split(";").map((part) => part.split(/=(.*)/s)),
);
const { AccountName: account, QueueEndpoint: endpoint } = parts;
const key = new StorageSharedKeyCredential(account, parts.AccountKey);
const service = new QueueServiceClient(endpoint, pipeline(key));
const expiresOn = new Date(Date.now() + 3_600_000);
const told = {};

/** Requests name a version that Azurite knows, older than the package's. */
function pipeline(credential) {
  const made = newPipeline(credential);
  made.factories.push({
    create: (next) => ({
      sendRequest(request) {
        request.headers.set("x-ms-version", "2025-11-05");
        return next.sendRequest(request);
      },
    }),
  });
  return made;
}

async function refusal(act) {
  try {
    await act();
  } catch (error) {
    if (error.statusCode === undefined) throw error;
    return [error.statusCode, error.code];
  }
  return "not refused";
}

async function all(items) {
  const found = [];
  for await (const item of items) found.push(item);
  return found;
}

async function metadataOf(client) {
  const properties = await client.getProperties();
  return [properties.metadata, properties.approximateMessagesCount];
}

async function receive(client, options) {
  const { receivedMessageItems } = await client.receiveMessages(options);
  return receivedMessageItems;
}

const name = "every-operation";
const queue = service.getQueueClient(name);
await queue.create({ metadata: { team: "red" } });
const again = await queue.create({ metadata: { team: "red" } });
told["created twice"] = again._response.status;
told["created otherwise"] = await refusal(() => queue.create({ metadata: { team: "blue" } }));
await queue.setMetadata({ floor: "3" });
told["metadata"] = await metadataOf(queue);
const listed = await all(service.listQueues({ prefix: name, includeMetadata: true }));
told["listed"] = listed.map((one) => [one.name, one.metadata]);
await service.createQueue(`${name}-2`);
const pages = await all(service.listQueues({ prefix: name }).byPage({ maxPageSize: 1 }));
told["listed by one"] = pages.map((page) => (page.queueItems ?? []).map((one) => one.name));
await service.deleteQueue(`${name}-2`);

// The package leaves line feeds out of what it sends, and reads a carriage return's `&#xD;` as five characters.
const text = ' a < b & c "d" \u{1f980}';
const put = await queue.sendMessage(text, { messageTimeToLive: 600 });
told["lives for"] = (put.expiresOn - put.insertedOn) / 1000;
const peeked = await queue.peekMessages({ numberOfMessages: 32 });
told["peeked"] = peeked.peekedMessageItems.map((one) => [one.messageText === text, one.dequeueCount]);
const [got] = await receive(queue, { visibilityTimeout: 60 });
told["got"] = [got.messageText === text, got.dequeueCount];
told["hidden"] = (await receive(queue)).length;
await queue.updateMessage(got.messageId, got.popReceipt, "changed", 1);
told["stale receipt"] = await refusal(() => queue.deleteMessage(got.messageId, got.popReceipt));
let changed;
while (!changed) {
  await delay(100);
  [changed] = await receive(queue);
}
told["changed"] = [changed.messageText, changed.dequeueCount];
const remove = () => queue.deleteMessage(changed.messageId, changed.popReceipt);
await remove();
told["deleted twice"] = await refusal(remove);
told["left"] = (await metadataOf(queue))[1];

for (let number = 0; number < 40; number++) await queue.sendMessage(String(number));
told["pages"] = 0;
for (let page = [null]; page.length > 0; told["pages"] += page.length) {
  page = await receive(queue, { numberOfMessages: 32, visibilityTimeout: 30 });
}
await queue.clearMessages();
told["cleared"] = (await metadataOf(queue))[1];

await queue.setAccessPolicy([{ id: "readers", accessPolicy: { permissions: "r", expiresOn } }]);
const { signedIdentifiers } = await queue.getAccessPolicy();
told["policies"] = signedIdentifiers.map((one) => one.id);
const bySignature = (values) => {
  const query = generateQueueSASQueryParameters({ queueName: name, ...values }, key);
  return new QueueClient(`${endpoint}/${name}?${query}`, pipeline());
};
const reader = bySignature({ identifier: "readers" });
told["by policy"] = (await metadataOf(reader))[1];
told["beyond policy"] = (await refusal(() => reader.sendMessage("no")))[0];
const adder = bySignature({ permissions: QueueSASPermissions.parse("a"), expiresOn });
await adder.sendMessage("yes");
told["by signature"] = (await queue.peekMessages()).peekedMessageItems[0].messageText;
told["beyond signature"] = (await refusal(() => receive(adder)))[0];
const lists = generateAccountSASQueryParameters(
  { services: "q", resourceTypes: "s", permissions: AccountSASPermissions.parse("l"), expiresOn },
  key,
);
const lister = new QueueServiceClient(`${endpoint}?${lists}`, pipeline());
told["by account"] = (await all(lister.listQueues({ prefix: name }))).map((one) => one.name);
const otherKey = new StorageSharedKeyCredential(account, "bm90IHRoZSBrZXk=");
const other = new QueueClient(`${endpoint}/${name}`, pipeline(otherKey));
told["by another key"] = (await refusal(() => other.clearMessages()))[0];

const rule = {
  allowedOrigins: "http://page.example",
  allowedMethods: "GET",
  allowedHeaders: "",
  exposedHeaders: "",
  maxAgeInSeconds: 5,
};
await service.setProperties({ cors: [rule] });
told["cors"] = (await service.getProperties()).cors.map((one) => one.allowedOrigins);
await service.setProperties({ cors: [] });
const second = new QueueServiceClient(`${endpoint}-secondary`, pipeline(key));
told["statistics"] = (await second.getStatistics()).geoReplication.status;
told["out of range"] = (await refusal(() => receive(queue, { visibilityTimeout: 604801 })))[0];
told["too large"] = (await refusal(() => queue.sendMessage("x".repeat(65537))))[0];

await queue.delete();
told["gone"] = await refusal(() => queue.getProperties());
console.log(JSON.stringify(told));
