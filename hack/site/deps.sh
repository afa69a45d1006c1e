#!/usr/bin/env bash
# Installs the load generators of `make bench-site` from Debian, only what is absent. Needs root.
# PostgreSQL's package would start a server: this leaves it without one. Without them, the suite
# leaves out the parts h2load and pgbench.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

# package | how to tell that it is there | why
install_debian "
nghttp2-client|command -v h2load|measures requests of HTTP/2
postgresql-common|command -v pg_createcluster|makes PostgreSQL's servers; none is started
"
settings=/etc/postgresql-common/createcluster.conf
ls /usr/lib/postgresql/*/bin/pgbench >/dev/null 2>&1 ||
	grep -qs '^create_main_cluster' $settings || echo 'create_main_cluster = false' >>$settings
install_debian "
postgresql|ls /usr/lib/postgresql/*/bin/pgbench|a server, and pgbench
"
