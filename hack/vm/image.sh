#!/usr/bin/env bash
# Makes the disk that every node of the VM lab starts from: out/vm/root.ext4, with the kernel
# and initial RAM disk of its own package beside it. Two minutes and 700 MB; skipped when neither
# the list of packages, their versions, hack/vm/root nor this script has changed.
#
# KUBEVEIL_VM_KERNEL=6.12 makes the same disk with that release of Linux, in out/vm/linux-6.12.
# The release of the default disk is asked for by its number, too: it is then a link to that disk.
#
# Debian's archives are those that this machine itself uses; none is named here.
set -euo pipefail
. "$(dirname "$0")/../lib.sh"

here=$ROOT/hack/vm
dest=$OUT/vm
size=6G
release=${KUBEVEIL_VM_KERNEL:-}

mapfile -t packages < <(grep -v '^#' "$here/packages")
candidates() { apt-cache policy "$@" | awk '/^[a-z]/ {name = $1} /Candidate:/ {print name, $2}'; }

# select_kernel puts the package of the asked release in the place of the default one.
select_kernel() {
	local default=linux-image-cloud-amd64 wanted=linux-image-$release-cloud-amd64 have
	[[ $release =~ ^[0-9]+\.[0-9]+$ ]] || die "KERNEL=$release: write a release of Linux, such as 6.12"
	if [[ $(candidates "$default") == "$default: $release."* ]]; then
		mkdir -p "$dest"
		ln -sfn . "$dest/linux-$release"
		return
	fi
	have=$(apt-cache pkgnames linux-image- | grep -E '^linux-image-[0-9.]+-cloud-amd64$' | tr '\n' ' ')
	[[ " $have" == *" $wanted "* ]] ||
		die "KERNEL=$release: this machine's Debian archives have no $wanted; they have $default ${have:-and no other}"
	packages=("${packages[@]/#$default/$wanted}")
	dest=$dest/linux-$release
}
[[ -z $release ]] || select_kernel

suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
from=$({
	candidates "${packages[@]}"
	echo "$size $suite"
	cd "$here" && find image.sh packages root -type f -print0 | sort -z | xargs -0 sha256sum
} | sha256sum | cut -d' ' -f1)
if built_from "$dest/root.ext4" "$from"; then
	exit 0
fi
[[ -n $(debian_sources) ]] || die "no Debian archive in this machine's apt configuration: run apt-get update, or add one"

# What an emulated machine would spend seconds of each boot on, and nobody here uses.
useless=(
	systemd-networkd-wait-online.service systemd-logind.service systemd-binfmt.service systemd-random-seed.service systemd-update-utmp.service
	systemd-pstore.service getty@tty1.service serial-getty@ttyS0.service sys-fs-fuse-connections.mount dev-hugepages.mount dev-mqueue.mount
	modprobe@configfs.service modprobe@drm.service modprobe@efi_pstore.service modprobe@fuse.service modprobe@loop.service modprobe@dm_mod.service
	systemd-tmpfiles-clean.timer dpkg-db-backup.timer
)

make_root() {
	debian_sources | nice mmdebstrap --variant=minbase --include="$(IFS=,; echo "${packages[*]}")" \
		--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
		--dpkgopt='path-exclude=/usr/share/locale/*' \
		--customize-hook="tar -C '$here/root' --owner=0 --group=0 -c . | tar -C \"\$1\" -x" \
		--customize-hook='rm -f "$1"/etc/ssh/ssh_host_* "$1"/etc/machine-id "$1"/etc/hostname "$1"/etc/resolv.conf "$1"/etc/cni/net.d/*; : >"$1"/etc/machine-id' \
		--customize-hook='chroot "$1" systemctl enable lab-seed.service systemd-networkd.service kubelet.service >/dev/null' \
		--customize-hook='chroot "$1" systemctl disable apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer fstrim.timer >/dev/null' \
		--customize-hook="chroot \"\$1\" systemctl mask ${useless[*]} >/dev/null" \
		--customize-hook='echo MODULES=list >"$1"/etc/initramfs-tools/conf.d/lab && printf "%s\n" virtio_pci virtio_blk >>"$1"/etc/initramfs-tools/modules' \
		--customize-hook='chroot "$1" update-initramfs -u' \
		--customize-hook='mkdir -p "$1"/opt/cni/bin "$1"/etc/kubernetes/manifests' \
		"$suite" "$work/root" -
}
make_disk() {
	cp "$work"/root/boot/vmlinuz-* "$work/vmlinuz"
	cp "$work"/root/boot/initrd.img-* "$work/initrd"
	truncate -s "$size" "$work/root.ext4"
	mke2fs -q -t ext4 -L root -E lazy_itable_init=1 -d "$work/root" "$work/root.ext4"
}

mkdir -p "$dest"
work=$(mktemp -d "$dest/.new.XXXXXX")
trap 'rm -rf "$work"' EXIT
chmod 0755 "$work"
progress "make the root of the VM lab's nodes${release:+ with Linux $release} from ${#packages[@]} Debian packages" make_root
progress "make their disk" make_disk
mv "$work/vmlinuz" "$work/initrd" "$work/root.ext4" "$dest/"
echo "$from" >"$dest/root.ext4.from"
