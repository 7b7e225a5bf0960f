#!/bin/sh
# Load during a rolling upgrade, from within the cluster: numbered QoS 1 messages, to a subscriber with a persistent
# session. Prints the numbers that are missing, and fails if there are any.
#
#   HOST, PORT, USERNAME, PASSWORD   the broker
#   SECONDS_OF_LOAD                  how long to publish
#   SECONDS_MORE                     how long the subscriber has for the last messages
#
# A publication or subscription that a stopping node ends is repeated: duplicates are allowed, losses are not.
set -eu
work=$(mktemp -d)
topic=rolling/$(hostname)
set -- -h "$HOST" -p "$PORT" -u "$USERNAME" -P "$PASSWORD"
subscriber="-i rolling-$(hostname) -c -t $topic -q 1"

flockmq sub "$@" $subscriber -E # the session is there before the first message
# Each message that came is complete in the file, even if the connection has ended meanwhile.
(
    until [ -e "$work/done" ]; do
        flockmq sub "$@" $subscriber -W 5 >>"$work/received" 2>>"$work/errors" || true
    done
) &
end=$(($(date +%s) + SECONDS_OF_LOAD))
number=0
while [ "$(date +%s)" -lt "$end" ]; do
    number=$((number + 1))
    tries=0
    until flockmq pub "$@" -t "$topic" -m "$number" -q 1 2>>"$work/errors"; do
        tries=$((tries + 1))
        [ "$tries" -lt 120 ] || { echo "message $number could not be published"; cat "$work/errors"; exit 1; }
        sleep 0.25
    done
done
sleep "$SECONDS_MORE"
touch "$work/done"
wait
seq "$number" | sort >"$work/sent"
sort -u "$work/received" | comm -23 "$work/sent" - >"$work/missing"
echo "published $number, missing $(wc -l <"$work/missing"), ended connections $(wc -l <"$work/errors")"
cat "$work/missing"
test ! -s "$work/missing"
