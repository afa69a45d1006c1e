#!/usr/bin/env bash
# Makes an arm64 machine without a disk: out/vm/arm64, with Debian's kernel and a root file system
# as an archive that the kernel unpacks into memory. Packages are unpacked and not configured, so
# nothing for arm64 runs on this machine. Skipped when neither packages nor this folder have
# changed. Needs root.
#
# Debian's archives are those that this machine itself uses; none is named here.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

install_debian "
qemu-system-arm|command -v qemu-system-aarch64|runs the machine
mmdebstrap|command -v mmdebstrap|unpacks Debian's packages
cpio|command -v cpio|makes the machine's root
kmod|command -v depmod|lists dependencies of kernel modules
"

here=$ROOT/hack/vm
dest=$OUT/vm/arm64
# The programs that a lab runs, and those that this machine itself needs.
packages=(
	linux-image-cloud-arm64 bash conntrack coreutils dash ethtool findutils grep iproute2 iptables
	kmod mawk mount netbase nftables procps sed util-linux wireguard-tools
)

suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
from=$({
	# The versions of another architecture are those of this one, except for rebuilds.
	apt-cache policy linux-image-cloud-amd64 | grep Candidate
	echo "$suite ${packages[*]}"
	cat "$here/arm64.sh" "$here/arm64/init"
} | sha256sum | cut -d' ' -f1)
if built_from "$dest/root.cpio" "$from"; then
	exit 0
fi
[[ -n $(debian_sources) ]] ||
	die "no Debian archive in this machine's apt configuration: run apt-get update, or add one"

unpack() {
	debian_sources | nice mmdebstrap --variant=extract --architectures=arm64 \
		--include="$(IFS=,; echo "${packages[*]}")" \
		--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
		--dpkgopt='path-exclude=/usr/share/locale/*' \
		--setup-hook='mkdir -p "$1"/usr/bin "$1"/usr/sbin "$1"/usr/lib' \
		--setup-hook='ln -s usr/bin usr/sbin usr/lib "$1"/' \
		"$suite" "$work/root" -
}

make_root() {
	local root=$work/root modules release
	modules=$(echo "$root"/usr/lib/modules/*)
	release=${modules##*/}
	cp "$root/boot/vmlinuz-$release" "$work/vmlinuz"
	# Drivers of devices that the machine does not have.
	find "$modules/kernel/drivers" -mindepth 1 -maxdepth 1 ! -name net -exec rm -r {} +
	rm -rf "$root"/boot/* "$root"/var/{cache,lib}/apt "$root"/usr/share/{perl*,zoneinfo}
	depmod --basedir "$root/usr" "$release"

	# What the packages' scripts would have made.
	mkdir -p "$root"/{dev,proc,sys,run,tmp,root,work} "$root/etc/alternatives"
	ln -sf dash "$root/usr/bin/sh"
	ln -sf mawk "$root/usr/bin/awk"
	for program in iptables ip6tables iptables-restore ip6tables-restore; do
		ln -sf xtables-nft-multi "$root/usr/sbin/$program"
	done
	echo root:x:0:0:root:/root:/bin/sh >"$root/etc/passwd"
	echo root:x:0: >"$root/etc/group"
	install -m 0755 "$here/arm64/init" "$root/init"
	cd "$root"
	find . -print0 | sort -z |
		cpio --null --create --format=newc --owner=0:0 --quiet >"$work/root.cpio"
}

mkdir -p "$dest"
work=$(mktemp -d "$dest/.new.XXXXXX")
trap 'rm -rf "$work"' EXIT
chmod 0755 "$work"
progress "unpack ${#packages[@]} packages of Debian for arm64" unpack
progress "make the root of the machine for arm64" make_root
mv "$work/vmlinuz" "$work/root.cpio" "$dest/"
echo "$from" >"$dest/root.cpio.from"
