#!/usr/bin/env bash
# Installs what the VM lab needs beyond hack/install-deps.sh, only what is absent. Needs root.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

# package | how to tell that it is there | why
WANTED="
mmdebstrap|command -v mmdebstrap|makes the root of the machines from packages
qemu-system-x86|command -v qemu-system-x86_64|runs the machines
qemu-utils|command -v qemu-img|makes their disks
openssh-client|command -v ssh|reaches them
e2fsprogs|command -v mke2fs|makes the disk that they share
jq|command -v jq|turns an object into the next one, as docs/storage.md does
ipset|command -v ipset|sets of kube-proxy in mode ipvs, copied into its image
netbase|test -e /etc/protocols|names protocols to nft, which kube-proxy asks
"

install_debian "$WANTED"
