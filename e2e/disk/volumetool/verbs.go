package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/csi/keyring"
	"github.com/kubeveil/kubeveil/e2e/disk/answer"
)

// rewrap makes a new key-encryption key and rewraps the volume's key with it. It repeats that as
// the arguments require, with a pause after each.
func (n *node) rewrap(ctx context.Context, words []string) (a answer.Answer, err error) {
	times, err := strconv.Atoi(words[1])
	if err != nil {
		return a, err
	}
	pause, err := time.ParseDuration(words[2])
	if err != nil {
		return a, err
	}

	for range times {
		if err := keyring.CreateFile(n.keyPath(len(n.keys) + 1)); err != nil {
			return a, err
		}
		if err := n.readKeys(); err != nil {
			return a, err
		}

		began := time.Now()
		changed, err := n.set.Rewrap(ctx, words[0], n.keys)
		if err == nil && !changed {
			err = fmt.Errorf("volume %s: a new key-encryption key did not rewrap it", words[0])
		}
		if err != nil {
			return a, err
		}

		a.Took = append(a.Took, time.Since(began))
		select {
		case <-ctx.Done():
			return a, ctx.Err()
		case <-time.After(pause):
		}
	}

	st, err := n.set.Get(ctx, words[0])
	a.KeyID, a.Epoch = st.Key.KeyID, st.Epoch
	return a, err
}

// fibmap is FIBMAP of linux/fs.h. This ioctl returns the number of a file's block on its device.
const fibmap = 1

// place returns the offset of a file's first block on the device of its file system. It flushes the
// file first.
func place(_ context.Context, words []string) (a answer.Answer, err error) {
	f, err := os.Open(words[0])
	if err != nil {
		return a, err
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return a, err
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fs); err != nil {
		return a, err
	}
	var block int32
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), fibmap,
		uintptr(unsafe.Pointer(&block))); errno != 0 {
		return a, fmt.Errorf("find the first block of %s: %w", words[0], errno)
	}
	a.Place = int64(block) * fs.Bsize
	return a, nil
}

// passphrase is the passphrase of reference devices, whose data is not secret.
const passphrase = "reference"

// perf holds cryptsetup's arguments for each tuning.
var perf = map[dmcrypt.Tuning][]string{
	dmcrypt.Throughput: {"--perf-submit_from_crypt_cpus"},
	dmcrypt.Latency:    {"--perf-no_read_workqueue", "--perf-no_write_workqueue"},
}

// formatArgs returns the command line with which stock cryptsetup formats a device like csi/crypt:
// with the same cipher, key size, sector size and offset, and the cheapest key derivation.
func formatArgs(device string) []string {
	return []string{
		"cryptsetup", "luksFormat", "-q", "--type", "luks2", "--cipher", crypt.Cipher, "--key-size",
		strconv.Itoa(8 * crypt.KeySize),
		"--sector-size", strconv.Itoa(crypt.SectorSize), "--offset",
		strconv.Itoa(crypt.DataOffset / 512),
		"--pbkdf", "pbkdf2", "--pbkdf-force-iterations", "1000", "--key-file", "-", device,
	}
}

// reference does the work of stage with stock programs. The device stays open for measurements.
// `umount FOLDER` and `cryptsetup close PATH` undo it.
func (n *node) reference(ctx context.Context, words []string) (a answer.Answer, err error) {
	what, device, folder := words[0], words[1], ""
	if len(words) > 2 {
		folder = words[2]
		if err := os.MkdirAll(folder, 0o700); err != nil {
			return a, err
		}
	}

	name := "reference-" + filepath.Base(device)
	a.Path = "/dev/mapper/" + name
	open := append([]string{"cryptsetup", "open", "--key-file", "-", device, name},
		perf[dmcrypt.Tuning(n.tuning)]...)

	steps := [][]string{open}
	switch {
	case what == "device" && folder == "":
		steps = [][]string{formatArgs(device), open}
	case what == "new" && folder != "":
		steps = [][]string{formatArgs(device), open, {"mkfs.ext4", "-q", a.Path},
			{"mount", a.Path, folder}}
	case what == "existing" && folder != "":
		steps = append(steps, []string{"fsck.ext4", "-p", a.Path},
			[]string{"mount", a.Path, folder})
	default:
		return a, fmt.Errorf("reference %q: want `device DEVICE`, or `new` or `existing` with "+
			"DEVICE and FOLDER", words)
	}

	began := time.Now()
	for _, s := range steps {
		cmd := exec.CommandContext(ctx, s[0], s[1:]...)
		cmd.Stdin = strings.NewReader(passphrase)
		if out, err := cmd.CombinedOutput(); err != nil {
			return a, fmt.Errorf("%s: %w: %s", strings.Join(s, " "), err, out)
		}
	}

	a.Took = []time.Duration{time.Since(began)}
	return a, nil
}
