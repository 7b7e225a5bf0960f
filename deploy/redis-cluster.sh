#!/bin/sh
# A Redis Cluster in one container, for docker-compose.yml: three primaries and a replica of each. The first start forms
# it. The servers know each other by 127.0.0.1, and clients know them by the name of the service: both outlive a restart.
# For production run each server on its own machine (deploy/docs/RUNBOOK.md).
set -eu
umask 077
data=${DATA:-/data}
conf=${CONF:-/usr/local/etc/redis.conf}
password=$(cat "${PASSWORD_FILE:-/run/redis-password/password}")
first=${FIRST_PORT:-7001}
bus=${BUS:-10000} # from a server's port to that of its bus
ports=$(seq "$first" $((first + 5)))
secret=$(mktemp)
printf 'masterauth %s\n' "$password" >"$secret"
export REDISCLI_AUTH="$password"

pids=
trap 'kill $pids 2>/dev/null || true' TERM INT
for port in $ports; do
    mkdir -p "$data/$port"
    redis-server "$conf" --include "$secret" --port "$port" --dir "$data/$port" --maxmemory "${MAXMEMORY:-1gb}" \
        --cluster-enabled yes --cluster-port $((port + bus)) --cluster-node-timeout 5000 \
        --cluster-require-full-coverage no --cluster-announce-ip 127.0.0.1 \
        --cluster-announce-hostname "${SERVICE:-redis-cluster}" --cluster-preferred-endpoint-type hostname &
    pids="$pids $!"
done
set -- $pids
for port in $ports; do
    # A server that has read its append-only file replies with PONG.
    until redis-cli -p "$port" ping 2>/dev/null | grep -q PONG; do
        if ! kill -0 "$1" 2>/dev/null; then
            echo "the server on port $port has ended: see its last lines above" >&2
            kill $pids 2>/dev/null || true
            exit 1
        fi
        sleep 0.2
    done
    shift
done
if redis-cli -p "$first" cluster info | grep -q '^cluster_slots_assigned:0'; then
    redis-cli --cluster create $(printf '127.0.0.1:%s ' $ports) --cluster-replicas 1 --cluster-yes
fi
# A server that ends stays away until the container is restarted; its replica takes over.
for pid in $pids; do
    while kill -0 "$pid" 2>/dev/null; do
        wait "$pid" || true # a signal ends it early, and the server may yet have to write its files
    done
done
