#!/bin/sh
# Installs packages that pip cannot: `system-packages.sh build` for building and running, `test` for the tests as well.
# Prints nothing if none is missing. On systems other than Debian and Ubuntu it prints what is missing.
set -eu

what=${1:-}
case $what in
build | test) ;;
*)
    echo "usage: $0 build|test" >&2
    exit 2
    ;;
esac

python=${PYTHON:-python3}
missing=
wanted=
need() { missing="$missing $1"; }
want() { wanted="$wanted $1"; } # not every release of Debian has it, and its tests are skipped without it
has() { PATH="$PATH:/usr/sbin:/usr/local/sbin" command -v "$1" >/dev/null 2>&1; }

# Features are tested, not packages: Python may be installed in another way. `ensurepip` is part of python3-venv,
# Python.h of python3-dev.
if has "$python"; then
    lacks=$("$python" - <<'END'
import importlib.util, os, sys, sysconfig
if sys.version_info < (3, 11):
    sys.exit("FlockMQ needs Python 3.11 or later, this is %d.%d; name another one with PYTHON=" % sys.version_info[:2])
if not all(importlib.util.find_spec(name) for name in ("venv", "ensurepip")):
    print("python3-venv")
if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
    print("python3-dev")
END
    )
    for package in $lacks; do need "$package"; done
else
    need python3
    need python3-venv
    need python3-dev
fi
if has gcc; then
    # A compiler needs the C library's headers.
    echo '#include <stdio.h>' | gcc -E -o /dev/null - 2>/dev/null || need libc6-dev
else
    need gcc
    need libc6-dev
fi
has make || need make
# TLS calls OpenSSL directly.
if has gcc; then
    echo '#include <openssl/ssl.h>' | gcc -E -o /dev/null - 2>/dev/null || need libssl-dev
else
    need libssl-dev
fi
if [ "$what" = test ]; then
    has ccache || need ccache
    has mosquitto || need mosquitto
    { has mosquitto_pub && has mosquitto_sub; } || need mosquitto-clients
    has node || need nodejs
    has npm || need npm
    has redis-server || need redis-server
    has redis-sentinel || need redis-sentinel
    has ss || need iproute2
    has haproxy || need haproxy
    { has postgres || ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1; } || need postgresql
    { has mariadbd && has mariadb-install-db; } || need mariadb-server
    has slapd || need slapd
    # python-ldap is compiled.
    if has gcc; then
        echo '#include <ldap.h>' | gcc -E -o /dev/null - 2>/dev/null || need libldap2-dev
        echo '#include <sasl/sasl.h>' | gcc -E -o /dev/null - 2>/dev/null || need libsasl2-dev
    else
        need libldap2-dev
        need libsasl2-dev
    fi
    has clickhouse-server || want clickhouse-server
    has influxd || want influxdb
    has nginx || need nginx-light
    { has prometheus && has promtool; } || need prometheus
    { [ -x /lib/systemd/systemd ] && has systemd-analyze; } || need systemd
    # Tests of containers use a Docker engine of their own, which only root can start.
    if [ "$(id -u)" = 0 ]; then
        has dockerd || need docker.io
        has docker-compose || need docker-compose
        has debootstrap || need debootstrap
        has iptables || need iptables
    fi
    # Spark 4 runs on Java 17 and 21; an older one counts as missing.
    case $(java -version 2>&1 | sed -n '1s/.*version "\([0-9]*\).*/\1/p') in
    17 | 21) ;;
    *) need default-jre-headless ;;
    esac
    has chromium || has chromium-browser || need chromium
    has chromedriver || need chromium-driver
fi
has apt-cache || wanted=
take_wanted() {
    for package in $wanted; do
        if apt-cache show "$package" >/dev/null 2>&1; then need "$package"; fi
    done
}
[ -n "$missing" ] || take_wanted
[ -n "$missing" ] || exit 0

command="apt-get install --yes --no-install-recommends"
if ! has apt-get; then
    echo "Missing:$missing (Debian's names). Install them with this system's package manager." >&2
    exit 1
fi
if [ "$(id -u)" = 0 ]; then
    root=
elif has sudo && sudo -n true 2>/dev/null; then
    root="sudo -n"
else
    echo "Missing:$missing. Run this as root: apt-get update && $command$missing" >&2
    exit 1
fi

# Debian starts a package's daemon at installation; a mosquitto on port 1883 would block ours. Packages call policy-rc.d
# first, and 101 means "do not start". An administrator's own policy stays, and so do daemons that are already running.
policy=/usr/sbin/policy-rc.d
placed=
forget_policy() { [ -z "$placed" ] || $root rm -f "$policy"; }
trap forget_policy EXIT
trap 'exit 1' HUP INT TERM
if [ ! -e "$policy" ]; then
    placed=yes
    printf '#!/bin/sh\nexit 101\n' | $root tee "$policy" >/dev/null
    $root chmod 755 "$policy"
fi

log=$(mktemp)
echo "Installing:$missing" >&2
if ! { $root apt-get update && take_wanted &&
    $root env DEBIAN_FRONTEND=noninteractive $command $missing; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    rm -f "$log"
    echo "apt-get could not install:$missing" >&2
    exit 1
fi
rm -f "$log"

# Disabled at boot too: the tests start their own. PACKAGE:UNIT where the names differ.
for daemon in mosquitto redis-server redis-sentinel haproxy nginx-light:nginx prometheus prometheus-node-exporter \
    postgresql mariadb-server:mariadb slapd clickhouse-server influxdb \
    docker.io:docker.service docker.io:docker.socket docker.io:containerd; do
    case "$missing " in
    *" ${daemon%%:*} "*)
        if has systemctl; then $root systemctl disable "${daemon##*:}" >/dev/null 2>&1 || true; fi
        ;;
    esac
done
