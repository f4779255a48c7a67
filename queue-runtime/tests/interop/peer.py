"""Another program on the same queues, made of packages that this repository did not write.

Reads one request, a JSON object, from its input; carries it out with the packages
`azure-storage-queue` and `cloudevents`; writes the answer, a JSON object, to its output.
"""

import json
import os
import sys

from azure.storage.queue import QueueClient, TextBase64DecodePolicy, TextBase64EncodePolicy
from cloudevents.core.formats.json import JSONFormat
from cloudevents.core.v1.event import CloudEvent

# The package's own default is newer than what Azurite accepts.
API_VERSION = "2025-11-05"


def client(request):
    policies = {}
    if request.get("base64"):
        policies["message_encode_policy"] = TextBase64EncodePolicy()
        policies["message_decode_policy"] = TextBase64DecodePolicy()
    return QueueClient.from_connection_string(
        os.environ["CONNECTION_STRING"],
        request["queue"],
        api_version=API_VERSION,
        **policies,
    )


def create(request):
    client(request).create_queue(metadata=request.get("metadata"))
    return {}


def set_metadata(request):
    client(request).set_queue_metadata(request["metadata"])
    return {}


def count(request):
    return {"messages": client(request).get_queue_properties().approximate_message_count}


def put(request):
    client(request).send_message(request["text"])
    return {}


def put_event(request):
    event = JSONFormat().write(CloudEvent(request["attributes"], request["data"]))
    client(request).send_message(event.decode("utf-8"))
    return {"event": event.decode("utf-8")}


def take_event(request):
    """Receives a message, reads it as an event, and only then deletes it."""
    queue = client(request)
    message = queue.receive_message()
    if message is None:
        return {"attributes": None}
    event = JSONFormat().read(CloudEvent, message.content)
    queue.delete_message(message)
    attributes = dict(event.get_attributes())
    attributes["time"] = attributes["time"].isoformat()
    data = event.get_data()
    if isinstance(data, bytes):
        data = {"bytes": list(data)}
    return {"attributes": attributes, "data": data}


REQUESTS = {
    request.__name__: request
    for request in (create, set_metadata, count, put, put_event, take_event)
}


def main():
    request = json.loads(sys.stdin.buffer.read())
    answer = REQUESTS[request["do"]](request)
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
