"""Puts ten orders, each as JSON: the Rust listener knows this form as `wire = "bare"`."""

import json
import os

from azure.core.exceptions import ResourceExistsError
from azure.storage.queue import QueueServiceClient

connection = os.environ.get("CONNECTION_STRING", "UseDevelopmentStorage=true")
orders = QueueServiceClient.from_connection_string(connection).get_queue_client("orders")
try:
    orders.create_queue()
except ResourceExistsError:
    pass  # The listener has created it.

for number in range(1, 11):
    orders.send_message(json.dumps({"number": number, "item": f"café no. {number}"}))
    print(f"put order {number}")
