"""Carries out each operation of the service by Microsoft's package, and prints what came of it, as JSON."""

import json
import os
import time
from datetime import datetime, timedelta, timezone
from urllib.parse import urlsplit

from azure.core.exceptions import HttpResponseError
from azure.storage.queue import (
    AccessPolicy,
    AccountSasPermissions,
    CorsRule,
    QueueClient,
    QueueSasPermissions,
    QueueServiceClient,
    ResourceTypes,
    generate_account_sas,
    generate_queue_sas,
)

connection = os.environ["CONNECTION_STRING"]
# Azurite knows no newer one.
options = {"api_version": "2024-11-04"}
service = QueueServiceClient.from_connection_string(connection, **options)
parts = dict(part.split("=", 1) for part in connection.split(";"))
account, key, endpoint = parts["AccountName"], parts["AccountKey"], parts["QueueEndpoint"]
end = datetime.now(timezone.utc) + timedelta(hours=1)
told = {}


def refusal(act):
    try:
        act()
    except HttpResponseError as error:
        return [error.status_code, str(getattr(error.error_code, "value", error.error_code))]
    return "not refused"


def metadata_of(client):
    properties = client.get_queue_properties()
    return [dict(properties.metadata), properties.approximate_message_count]


name = "every-operation"
queue = service.create_queue(name, metadata={"team": "red"})
# The package takes 204 for an error, and adds a code.
told["created twice"] = refusal(lambda: queue.create_queue(metadata={"team": "red"}))[0]
told["created otherwise"] = refusal(lambda: queue.create_queue(metadata={"team": "blue"}))
queue.set_queue_metadata({"floor": "3"})
told["metadata"] = metadata_of(queue)
told["listed"] = [[one.name, one.metadata] for one in service.list_queues(name, include_metadata=True)]
service.create_queue(f"{name}-2")
pages = service.list_queues(name, results_per_page=1).by_page()
told["listed by one"] = [[one.name for one in page] for page in pages]
service.delete_queue(f"{name}-2")

text = 'a < b & c "d" \r\n \U0001f980'
put = queue.send_message(text, time_to_live=600)
told["lives for"] = (put.expires_on - put.inserted_on) // timedelta(seconds=1)
told["peeked"] = [[one.content == text, one.dequeue_count] for one in queue.peek_messages(32)]
(got,) = queue.receive_messages(visibility_timeout=60)
told["got"] = [got.content == text, got.dequeue_count]
told["hidden"] = len(list(queue.receive_messages()))
changed = queue.update_message(got, content="changed", visibility_timeout=1)
told["stale receipt"] = refusal(lambda: queue.delete_message(got.id, got.pop_receipt))
time.sleep(1.5)
(again,) = queue.receive_messages()
told["changed"] = [again.content, again.dequeue_count]
queue.delete_message(again)
told["deleted twice"] = refusal(lambda: queue.delete_message(again))
told["left"] = metadata_of(queue)[1]

for number in range(40):
    queue.send_message(str(number))
told["pages"] = len(list(queue.receive_messages(messages_per_page=32, visibility_timeout=30)))
queue.clear_messages()
told["cleared"] = metadata_of(queue)[1]

queue.set_queue_access_policy({"readers": AccessPolicy(QueueSasPermissions(read=True), end)})
told["policies"] = sorted(queue.get_queue_access_policy())
follows = generate_queue_sas(account, name, key, policy_id="readers")
reader = QueueClient(endpoint, name, credential=follows, **options)
told["by policy"] = metadata_of(reader)[1]
told["beyond policy"] = refusal(lambda: reader.send_message("no"))[0]
adds = generate_queue_sas(account, name, key, QueueSasPermissions(add=True), end)
adder = QueueClient(endpoint, name, credential=adds, **options)
told["by signature"] = adder.send_message("yes").content
told["beyond signature"] = refusal(lambda: list(adder.receive_messages()))[0]
lists = generate_account_sas(
    account, key, ResourceTypes(service=True), AccountSasPermissions(list=True), end
)
lister = QueueServiceClient(endpoint, credential=lists, **options)
told["by account"] = [one.name for one in lister.list_queues(name)]
other = QueueClient(endpoint, name, credential="bm90IHRoZSBrZXk=", **options)
told["by another key"] = refusal(lambda: other.clear_messages())[0]

rule = CorsRule(["http://page.example"], ["GET"], max_age_in_seconds=5)
service.set_service_properties(cors=[rule])
told["cors"] = [one.allowed_origins for one in service.get_service_properties()["cors"]]
service.set_service_properties(cors=[])
# The package adds the path of the first region to the host of the second one.
host = urlsplit(endpoint).netloc
signed = {"account_name": account, "account_key": key}
second = QueueServiceClient(
    f"{endpoint}-secondary", credential=signed, secondary_hostname=host, **options
)
told["statistics"] = second.get_service_stats()["geo_replication"]["status"]
told["out of range"] = refusal(lambda: list(queue.receive_messages(visibility_timeout=604801)))[0]
told["too large"] = refusal(lambda: queue.send_message("x" * 65537))[0]

queue.delete_queue()
told["gone"] = refusal(lambda: queue.get_queue_properties())
print(json.dumps(told))
