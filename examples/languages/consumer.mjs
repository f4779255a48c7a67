// Receives receipts, prints and deletes them: as many as the last argument says, or until it is ended. Each receipt is an
// event of CloudEvents.

import { setTimeout as delay } from "node:timers/promises";

import { QueueServiceClient } from "@azure/storage-queue";

const connection = process.env.CONNECTION_STRING ?? "UseDevelopmentStorage=true";
const receipts = QueueServiceClient.fromConnectionString(connection).getQueueClient("receipts");
await receipts.createIfNotExists();

let missing = Number(process.argv.at(-1)) || Infinity;
while (missing > 0) {
  const { receivedMessageItems } = await receipts.receiveMessages({ numberOfMessages: 10 });
  for (const { messageId, popReceipt, messageText } of receivedMessageItems) {
    const { data } = JSON.parse(messageText);
    console.log(`order ${data.order}: ${data.text}`);
    await receipts.deleteMessage(messageId, popReceipt);
    missing -= 1;
  }
  if (receivedMessageItems.length === 0) await delay(200);
}
