#!/bin/sh
# Generates the passwords of docker-compose.yml at the first run; later runs change nothing. Each is in a separate
# volume, readable by its owner only. How to change one: deploy/docs/COMPOSE.md.
set -eu
umask 277

# Write standard input to a file: completely, or not at all.
keep() {
    rm -f "$1.new"
    cat >"$1.new"
    mv "$1.new" "$1"
}

new_password() { head -c 24 /dev/urandom | base64 | tr '+/' '-_'; }

redis=/volumes/redis-password
grafana=/volumes/grafana-password
mqtt=/volumes/mqtt-password
[ -e $redis/password ] || new_password | keep $redis/password
[ -e $redis/redis.conf ] || sed 's/^/requirepass /' $redis/password | keep $redis/redis.conf
# The user `flockmq`; how to add users: deploy/docs/COMPOSE.md.
[ -e $mqtt/password ] || new_password | keep $mqtt/password
[ -e $mqtt/passwords ] || flockmq passwd $mqtt/passwords flockmq <$mqtt/password
# The token of the nodes' API for `flockmq users` and other commands in their containers.
[ -e $mqtt/token ] || flockmq token $mqtt/tokens admin --role admin 2>/dev/null | keep $mqtt/token
[ -e $grafana/password ] || new_password | keep $grafana/password
