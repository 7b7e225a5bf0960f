#!/bin/sh
# The first process of the image: `flockmq` with the arguments of the container. A container that is to serve, and whose
# configuration has no authentication, makes a user and a token for the web page at its first start: a port that is
# published is open to the network. They are files of the volume, so no log has them.
set -eu
if [ "$*" = serve ] && ! env | grep -q -e '^FLOCKMQ_AUTH_' -e '^FLOCKMQ_CONFIG='; then
    (
        umask 077
        if [ ! -e passwords ]; then
            head -c 24 /dev/urandom | base64 | tr '+/' '-_' >first-password
            flockmq passwd passwords flockmq <first-password
        fi
        [ -e tokens ] || flockmq token tokens admin --role admin >first-token 2>/dev/null
        if [ -e first-password ]; then
            echo "the user flockmq, and admin of the web page, have the password in $PWD/first-password; programs take" \
                "the token in $PWD/first-token: docker exec CONTAINER cat first-password first-token" >&2
        fi
    )
    if [ -e first-password ]; then
        export FLOCKMQ_HTTP_FIRST_PASSWORD_FILE="${FLOCKMQ_HTTP_FIRST_PASSWORD_FILE-$PWD/first-password}"
    fi
    export FLOCKMQ_AUTH_PASSWORD_FILE="$PWD/passwords" FLOCKMQ_HTTP_TOKENS_FILE="${FLOCKMQ_HTTP_TOKENS_FILE-$PWD/tokens}"
fi
exec flockmq "$@"
