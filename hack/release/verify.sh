#!/bin/sh
# Checks the folder of a release of Kubeveil: the signature of SHA256SUMS, the sum of each file,
# that the folder has no other file, and its version. It needs sha256sum and ssh-keygen (OpenSSH 8.1
# or newer).
#
# Name the version that you want by --version. Otherwise an older release, with a good signature and
# a known hole, passes under a newer name.
#
# The public key must come from its owner, not from where the folder came from: SECURITY.md. A
# folder can bring a changed copy of this script. Read it, or take it from a source that you trust.
set -eu
export LC_ALL=C # sha256sum translates its results, and other letters are not in A-Z

usage() {
	echo "usage: verify.sh --key FILE [--version v0.1.0] [FOLDER]" >&2
	echo "FILE is the public key of the release. FOLDER is by default where this script is." >&2
	exit 2
}

fail() {
	printf 'verify.sh: %s\n' "$*" >&2
	exit 1
}

key='' folder='' version=''
while [ $# -gt 0 ]; do
	case $1 in
	--key)
		[ $# -ge 2 ] || usage
		key=$2
		shift
		;;
	--version)
		[ -n "${2:-}" ] || usage
		version=$2
		shift
		;;
	-*) usage ;;
	*)
		[ -z "$folder" ] || usage
		folder=$1
		;;
	esac
	shift
done
[ -n "$key" ] || usage
[ -f "$key" ] || fail "$key: there is no such file"
case $0 in
*/*) here=${0%/*}/ ;;
*) here=. ;;
esac
given=${folder:-$here}
[ -d "$given" ] || fail "$given: there is no such folder"
folder=$(CDPATH='' cd -- "$given" && pwd -P)
# A substitution loses line breaks at the end of a name, which may be the name of another folder.
[ "$folder" -ef "$given" ] || fail "the name of the folder ends with a line break: rename it"
[ "$(CDPATH='' cd -- "$(dirname -- "$key")" && pwd -P)" != "$folder" ] ||
	fail "$key: take the public key from its owner, not from the folder that it checks"

tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
while read -r type text _ || [ -n "$type" ]; do
	case $type in
	ssh-* | ecdsa-* | sk-*) printf 'kubeveil %s %s\n' "$type" "$text" ;;
	esac
done <"$key" >"$tmp/signers"
[ -s "$tmp/signers" ] || fail "$key: it has no public key of OpenSSH"
[ "$(wc -l <"$tmp/signers")" -eq 1 ] || fail "$key: it has several keys: leave that of the release"

cd -- "$folder"
for f in SHA256SUMS SHA256SUMS.sig; do
	[ -f "$f" ] && [ ! -L "$f" ] || fail "$folder/$f: there is no such file"
done
ssh-keygen -Y verify -f "$tmp/signers" -I kubeveil -n kubeveil-release -s SHA256SUMS.sig \
	<SHA256SUMS >"$tmp/answer" 2>&1 ||
	fail "SHA256SUMS or SHA256SUMS.sig was changed, or another key signed: $(cat "$tmp/answer")"
# sha256sum leaves out lines that it cannot parse, and follows names to other folders.
! grep -qvE '^[0-9a-f]{64}  [A-Za-z0-9][A-Za-z0-9._-]*$' SHA256SUMS ||
	fail "SHA256SUMS: a line is not the sum and the name of a file"

wrong=0
for f in * .[!.]* ..?*; do
	[ -e "$f" ] || [ -L "$f" ] || continue
	case $f in
	SHA256SUMS | SHA256SUMS.sig) continue ;;
	*[!A-Za-z0-9._-]*) # grep would look for each line of a name, a terminal obey its control bytes
		printf 'verify.sh: %s: not a file of this release\n' "$(
			printf '%s' "$f" | tr -c 'A-Za-z0-9._ -' '?'
		)" >&2
		wrong=1
		continue
		;;
	esac
	if [ -L "$f" ] || [ ! -f "$f" ] || ! cut -c 67- SHA256SUMS | grep -qxF -e "$f"; then
		printf 'verify.sh: %s: not a file of this release\n' "$f" >&2
		wrong=1
	fi
done
sha256sum -c SHA256SUMS >"$tmp/answer" 2>&1 || {
	grep -v ': OK$' "$tmp/answer" >&2
	wrong=1
}
[ "$wrong" = 0 ] || exit 1

# The loop above and the sums prove that this file, if there is one, is as it was signed.
[ -f VERSION ] || fail "VERSION: this release names no version"
is=$(cat VERSION)
[ "${version:-$is}" = "$is" ] || fail "VERSION: $folder is $is, not $version"
printf '%s: %s, the signature is good, and so are all %d files\n' "$folder" "$is" \
	"$(wc -l <SHA256SUMS)"
