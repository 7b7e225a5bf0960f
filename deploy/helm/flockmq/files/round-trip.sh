set -eu
topic=flockmq-helm-test/$(hostname)

echo "a client without credentials"
if flockmq pub -h "$HOST" -p "$PORT" $OPTIONS -t "$topic" -m stranger -q 1 2>/tmp/answer; then
    echo "was accepted: anybody may connect"
    exit 1
fi
cat /tmp/answer
grep -q "not authorized" /tmp/answer # and not a network that lets nothing through

if [ -n "${USERNAME:-}" ]; then
    echo "a retained message by $USERNAME"
    set -- -h "$HOST" -p "$PORT" $OPTIONS -u "$USERNAME" -P "$PASSWORD" -t "$topic"
    flockmq pub "$@" -m hello -q 1 -r
    answer=$(flockmq sub "$@" -q 1 -C 1 -W 20)
    flockmq pub "$@" -n -q 1 -r
    test "$answer" = hello
fi
echo "passed"
