#!/usr/bin/env bash
# Fetches haproxy, which `make bench-service` needs beyond hack/install-deps.sh, and installs its
# libraries, only what is absent. Needs root. haproxy is not installed but taken apart into
# out/tools, because its package starts a service.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

# package | how to tell that it is there | why
WANTED="
liblua5.3-0|ldconfig -p | grep -q liblua5.3.so.0|haproxy needs it
libopentracing-c-wrapper0|ldconfig -p | grep -q libopentracing-c-wrapper|haproxy needs it
libpcre2-8-0|ldconfig -p | grep -q libpcre2-8.so|haproxy needs it
"

haproxy=$OUT/tools/haproxy
install_debian "$WANTED" "$haproxy"
if [[ ! -x $haproxy ]]; then
	say "will fetch haproxy into out/tools (not installed): a side of the comparison"
	progress "fetch haproxy" unpack_debian haproxy usr/sbin/haproxy "$haproxy"
fi
