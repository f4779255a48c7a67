#!/bin/sh
# Puts, gets and deletes a message by curl. Each request is signed as the service asks today.
# ENDPOINT is the address of an account's queues, ACCOUNT and KEY are its name and its key in Base64; QUEUE exists.
set -eu
export LC_ALL=C

key=$(printf %s "$KEY" | base64 -d | od -An -v -tx1 | tr -d ' \n')

# request VERB URL SIGNED-PARAMETERS BODY
request() {
    date=$(date -u '+%a, %d %b %Y %H:%M:%S GMT')
    path=$(printf %s "$2" | sed 's|^[a-z]*://[^/]*||; s|?.*||')
    length='' type=''
    if [ -n "$4" ]; then length=${#4} type=application/xml; fi
    signature=$(
        printf '%s\n\n\n%s\n\n%s\n\n\n\n\n\n\nx-ms-date:%s\nx-ms-version:2024-11-04\n/%s%s%s' \
            "$1" "$length" "$type" "$date" "$ACCOUNT" "$path" "$3" |
            openssl dgst -sha256 -mac HMAC -macopt "hexkey:$key" -binary | base64
    )
    curl --silent --show-error --fail-with-body --request "$1" "$2" \
        --header "x-ms-date: $date" --header 'x-ms-version: 2024-11-04' \
        --header "Authorization: SharedKey $ACCOUNT:$signature" \
        --header "Content-Type: $type" ${4:+--data-binary "$4"} \
        --write-out '\n%{response_code}\n'
}

element() { printf %s "$2" | sed "s|.*<$1>||; s|</$1>.*||" | head -n 1; }
newline='
'

messages=$ENDPOINT/$QUEUE/messages
request POST "$messages" '' '<QueueMessage><MessageText>Hello, queue</MessageText></QueueMessage>'
got=$(request GET "$messages?numofmessages=1&visibilitytimeout=60" \
    "${newline}numofmessages:1${newline}visibilitytimeout:60" '')
echo "$got"
id=$(element MessageId "$got")
receipt=$(element PopReceipt "$got")
escaped=$(printf %s "$receipt" | sed 's/+/%2B/g; s|/|%2F|g; s/=/%3D/g')
request DELETE "$messages/$id?popreceipt=$escaped" "${newline}popreceipt:$receipt" ''
