package dmcrypt

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/internal/blk"
	"github.com/kubeveil/kubeveil/csi/keyring"
)

// Kernel is the Engine for this machine's device-mapper. The zero value is ready to use. It needs
// CAP_SYS_ADMIN, /dev/mapper/control, the module dm_crypt, and add_key(2) and keyctl(2), which most
// seccomp profiles of containers deny. It starts no program and does not wait for udev.
type Kernel struct {
	// Inline lets the tuning Latency use dm-crypt's flags no_read_workqueue and no_write_workqueue.
	// Set it only if LatencyIsSafe, or if the kernel is known to have the fix. Other kernels
	// corrupt memory (CVE-2024-26718).
	Inline bool
}

// flags returns the dm-crypt arguments of the tuning that are allowed on this kernel.
func (k Kernel) flags(c Tuning) []string {
	if c == Latency && !k.Inline {
		return nil
	}
	return c.flags()
}

// LatencyIsSafe reports whether dm-crypt of that mainline release decrypts without tasklets.
// release has the form of uname(2). The tasklets wrote to freed memory (CVE-2024-26718, fixed in
// 6.8 and backported since).
func LatencyIsSafe(release string) bool {
	const fixedMajor, fixedMinor = 6, 8
	var major, minor int
	if n, err := fmt.Sscanf(release, "%d.%d", &major, &minor); n != 2 || err != nil {
		return false
	}
	return major > fixedMajor || major == fixedMajor && minor >= fixedMinor
}

// Answer implements Engine. It requests the version, because the kernel answers only this request
// without a lock (ctl_ioctl in drivers/md/dm-ioctl.c).
func (Kernel) Answer(context.Context) error {
	_, err := dmRequest{command: dmVersion}.call()
	return err
}

// Create implements Engine.
func (k Kernel) Create(_ context.Context, t MappingSpec, key *keyring.Secret) (Mapping, error) {
	if _, err := (dmRequest{command: dmDevCreate, name: t.Name, uuid: t.UUID}).call(); err != nil {
		return Mapping{}, err
	}
	m, err := create(t, key, k.flags(t.Tuning))
	if err != nil {
		return Mapping{}, errors.Join(err, remove(t.Name, 0))
	}
	return m, nil
}

func create(t MappingSpec, key *keyring.Secret, flags []string) (Mapping, error) {
	if err := load(t, key, flags); err != nil {
		return Mapping{}, err
	}
	if err := resume(t.Name); err != nil {
		return Mapping{}, err
	}
	m, err := lookup(t.Name)
	if err != nil {
		return m, err
	}
	if d := t.Differs(m); d != "" {
		return Mapping{}, fmt.Errorf("mapping %s differs from the request: %s", t.Name, d)
	}
	return m, nil
}

// load loads the table into the mapping. It passes the key in the keyring of a thread that ends
// with this call.
func load(t MappingSpec, key *keyring.Secret, flags []string) error {
	done := make(chan error, 1)
	go func() {
		// Never unlock the thread, so that it ends with the goroutine, and its keyring with it.
		runtime.LockOSThread()
		done <- loadOnThread(t, key, flags)
	}()
	return <-done
}

func loadOnThread(t MappingSpec, key *keyring.Secret, flags []string) error {
	defer runtime.KeepAlive(key)
	if err := crypt.CheckKey(key.Bytes()); err != nil {
		return fmt.Errorf("mapping %s: %w", t.Name, err)
	}
	id, err := unix.AddKey("logon", keyPrefix+t.Volume.String(), key.Bytes(),
		unix.KEY_SPEC_THREAD_KEYRING)
	if err != nil {
		return fmt.Errorf("mapping %s: pass the key to the kernel: %w: add_key: %w; allow "+
			"the process add_key and keyctl", t.Name, ErrNotSupported, err)
	}
	err = loadTuned(t, flags, dmRequest.call)
	if _, gone := unix.KeyctlInt(unix.KEYCTL_REVOKE, id, 0, 0, 0); gone != nil {
		err = errors.Join(err, fmt.Errorf("mapping %s: revoke the key: %w", t.Name, gone))
	}
	return err
}

// loadTuned loads the table with these flags, or without them if the kernel lacks one. The kernel
// returns EINVAL for everything that it does not support or accept (crypt_ctr_optional in
// drivers/md/dm-crypt.c). If the cause is not a flag, the second attempt fails, too.
func loadTuned(t MappingSpec, flags []string, call func(dmRequest) (*dmReply, error)) error {
	err := loadTable(t, flags, call)
	if errors.Is(err, unix.EINVAL) && len(flags) > 0 {
		err = loadTable(t, nil, call)
	}
	return err
}

func loadTable(t MappingSpec, flags []string, call func(dmRequest) (*dmReply, error)) error {
	_, err := call(dmRequest{command: dmTableLoad, name: t.Name,
		targets: []dmTarget{{0, uint64(t.Payload) >> sectorBits, "crypt", t.params(flags)}}})
	return err
}

func resume(name string) error {
	_, err := dmRequest{command: dmDevSuspend, name: name, udev: true}.call()
	return err
}

// Lookup implements Engine.
func (Kernel) Lookup(_ context.Context, name string) (Mapping, error) { return lookup(name) }

func lookup(name string) (Mapping, error) {
	r, err := dmRequest{command: dmTableStatus, name: name,
		flags: dmStatusTableFlag | dmNoFlushFlag}.call()
	if err != nil {
		return Mapping{}, err
	}
	targets, err := r.targets()
	if err != nil {
		return Mapping{}, fmt.Errorf("mapping %s: %w", name, err)
	}
	// The kernel packs device numbers as in stat(2): 8 bits of minor, 12 bits of major, then the
	// rest of minor (huge_encode_dev).
	number := unix.Mkdev(uint32(r.dev>>8&0xfff), uint32(r.dev&0xff|r.dev>>12&0xfff00))
	return Mapping{
		Name: r.name, UUID: r.uuid, Number: number,
		Path: fmt.Sprintf("/dev/dm-%d", unix.Minor(number)), Open: r.open,
		Suspended: r.flags&dmSuspendFlag != 0, Inactive: r.flags&dmInactiveFlag != 0,
		ReadOnly: r.flags&dmReadOnlyFlag != 0, Targets: targets,
	}, nil
}

// List implements Engine.
func (Kernel) List(_ context.Context, prefix string) ([]string, error) {
	r, err := dmRequest{command: dmListDevices}.call()
	if err != nil {
		return nil, err
	}
	names, err := r.names()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(names, func(n string) bool {
		return !strings.HasPrefix(n, prefix)
	}), nil
}

// Probe implements Engine.
func (Kernel) Probe(_ context.Context, name string) error {
	m, err := lookup(name)
	if err != nil {
		return err
	}
	if n, err := blk.Number(m.Path); err != nil {
		return fmt.Errorf("mapping %s: %w", name, err)
	} else if n != m.Number {
		return fmt.Errorf("mapping %s: %s is another device", name, m.Path)
	}
	return probe(m.Path)
}

// probe reads from the disk, not from the page cache. It does not open the mapping exclusively,
// because the mapping may be mounted.
func probe(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("probe %s: %w", path, err)
	}
	defer unix.Close(fd)
	b := blk.Buffer(blk.Align)
	n, err := unix.Pread(fd, b, 0)
	clear(b) // The buffer holds plain text.
	if err == nil && n < blk.Align {
		err = fmt.Errorf("%d of %d bytes", n, blk.Align)
	}
	if err != nil {
		return fmt.Errorf("probe %s: %w", path, err)
	}
	return nil
}

// Resize implements Engine.
func (k Kernel) Resize(ctx context.Context, t MappingSpec, key *keyring.Secret) error {
	if err := load(t, key, k.flags(t.Tuning)); err != nil {
		return err
	}
	err := swapTables(t.Name, dmSkipLockFSFlag)
	if err != nil {
		// If the kernel cannot make the new table live, for example on a disk that shrank, the
		// mapping stays suspended (do_resume in drivers/md/dm-ioctl.c).
		err = errors.Join(err, k.Suspend(ctx, t.Name, false))
	}
	return err
}

// swapTables suspends and resumes the mapping, which makes the inactive table live.
func swapTables(name string, flags uint32) error {
	if _, err := (dmRequest{command: dmDevSuspend, name: name, flags: dmSuspendFlag | flags}).
		call(); err != nil {
		return err
	}
	return resume(name)
}

// Suspend implements Engine.
func (Kernel) Suspend(_ context.Context, name string, suspended bool) error {
	if !suspended {
		// Drop an inactive second table first: resuming would make it live, and it may be wrong.
		if _, err := (dmRequest{command: dmTableClear, name: name}).call(); err != nil {
			return err
		}
		return resume(name)
	}
	_, err := dmRequest{command: dmDevSuspend, name: name, flags: dmSuspendFlag}.call()
	return err
}

// Fence implements Engine. Requests that are held back fail and are not written (noflush). Fence
// waits for the requests that were already sent to the disk, so a disk that hangs delays it.
func (Kernel) Fence(_ context.Context, name string) error {
	m, err := lookup(name)
	if err != nil {
		return err
	}
	var size int64
	for _, t := range m.Targets {
		size = max(size, t.Start+t.Length)
	}
	if size == 0 {
		// No table is live. Do not resume: that would make an inactive table live.
		return nil
	}
	q := dmRequest{command: dmTableLoad, name: name,
		targets: []dmTarget{{0, uint64(size) >> sectorBits, "error", ""}}}
	if _, err := q.call(); err != nil {
		return err
	}
	return swapTables(name, dmSkipLockFSFlag|dmNoFlushFlag)
}

// Remove implements Engine.
func (Kernel) Remove(_ context.Context, name string, deferred bool) error {
	err := remove(name, 0)
	if errors.Is(err, unix.EBUSY) && deferred {
		err = remove(name, dmDeferredFlag)
	}
	switch {
	case errors.Is(err, ErrNoMapping):
		return nil
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("mapping %s: %w", name, ErrInUse)
	}
	return err
}

func remove(name string, flags uint32) error {
	_, err := dmRequest{command: dmDevRemove, name: name, flags: flags, udev: true}.call()
	return err
}
