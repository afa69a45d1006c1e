package dmcrypt

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kubeveil/kubeveil/csi/crypt"
	"github.com/kubeveil/kubeveil/csi/keyring"
)

// Errors of engines.
var (
	// ErrNoMapping means that no mapping has that name.
	ErrNoMapping = errors.New("no such mapping")
	// ErrExists means that a mapping of that name exists.
	ErrExists = errors.New("mapping exists")
	// ErrInUse means that the mapping is open.
	ErrInUse = errors.New("mapping is in use")
	// ErrNotSupported means that this kernel, or the sandbox of the process, lacks a feature. The
	// message names the feature.
	ErrNotSupported = errors.New("not supported here")
)

// Tuning is the workload for which a mapping is tuned.
type Tuning string

// The tunings.
const (
	// Throughput uses dm-crypt's queues and sends writes from the processors that encrypted them.
	Throughput Tuning = "throughput"
	// Latency encrypts on the requesting processor, without queues. It suits small requests on fast
	// disks.
	Latency Tuning = "latency"
)

// flags returns the dm-crypt arguments of the tuning. If the kernel lacks one of them, none is
// used.
func (c Tuning) flags() []string {
	switch c {
	case Latency:
		return []string{"no_read_workqueue", "no_write_workqueue"}
	case Throughput:
		return []string{"submit_from_crypt_cpus"}
	}
	return nil
}

// tuningFlags are the flags that change only the speed of a mapping.
var tuningFlags = append(Throughput.flags(), Latency.flags()...)

// Engine makes and changes mappings. Its methods may be called from several goroutines for
// different names.
type Engine interface {
	// Answer returns ErrNotSupported if device-mapper cannot be used. It does not wait for a disk
	// or for another call.
	Answer(ctx context.Context) error
	// Create makes a live mapping with table t and key, and returns it. It returns ErrExists if the
	// name is taken. After any other error the mapping does not exist.
	Create(ctx context.Context, t MappingSpec, key *keyring.Secret) (Mapping, error)
	// Lookup returns the mapping of that name, or ErrNoMapping.
	Lookup(ctx context.Context, name string) (Mapping, error)
	// List returns the names of all mappings that begin with prefix.
	List(ctx context.Context, prefix string) ([]string, error)
	// Probe reads the first sectors of the mapping from its disk. It returns an error if they
	// cannot be read.
	Probe(ctx context.Context, name string) error
	// Resize replaces the table of t.Name by t, which differs only in size. After an error the
	// mapping is live and unchanged. If the process dies in between, the old table stays, perhaps
	// suspended, perhaps with an inactive second table.
	Resize(ctx context.Context, t MappingSpec, key *keyring.Secret) error
	// Suspend suspends or resumes the mapping. With suspended true, it flushes and freezes the file
	// system on the mapping, waits for requests under way and holds back later ones. The mapping
	// stays suspended after the process ends. With suspended false, it drops an inactive second
	// table and resumes the live one. It does not change a mapping that is live.
	Suspend(ctx context.Context, name string, suspended bool) error
	// Fence makes every request to the mapping fail, also requests that are held back, and makes
	// the kernel drop the key.
	Fence(ctx context.Context, name string) error
	// Remove removes the mapping. It returns nil if the mapping does not exist. If the mapping is
	// open, Remove returns ErrInUse, or with deferred has the kernel remove it on its last close.
	Remove(ctx context.Context, name string, deferred bool) error
}

// MappingSpec describes a dm-crypt mapping that should exist.
type MappingSpec struct {
	// Name and UUID are its names in device-mapper.
	Name, UUID string
	// Device is the number of the block device below the mapping.
	Device uint64
	// Payload is the size of the mapping in bytes. Offset is its start on the device in bytes.
	Payload, Offset int64
	// Volume is the LUKS UUID, which names the key in the keyring.
	Volume  crypt.UUID
	Tuning  Tuning
	Discard bool
}

// Prefixes of our mappings' names in device-mapper.
const (
	namePrefix = "kubeveil-"
	uuidPrefix = "KUBEVEIL-"
	keyPrefix  = "kubeveil:"
)

// NamePrefixAll is the prefix of the names of all mappings of volumes.
const NamePrefixAll = namePrefix

// NamePrefix returns the prefix of the names of the volume's mappings, in all epochs.
func NamePrefix(u crypt.UUID) string { return namePrefix + u.String() + "-" }

// NewMappingSpec returns the mapping for a verified record on the device of that number.
func NewMappingSpec(r crypt.Record, device uint64, tuning Tuning, discard bool) MappingSpec {
	t := Expected(r.UUID, r.Epoch, r.Payload, device, tuning, discard)
	t.Offset = r.Offset()
	return t
}

// Expected returns the properties that the volume's mapping must have by the trusted state.
// Compare a found mapping with it. Each epoch has its own names, so an old mapping that is still
// open does not block a new one.
func Expected(u crypt.UUID, epoch uint64, payload int64, device uint64, tuning Tuning,
	discard bool) MappingSpec {
	n := strconv.FormatUint(epoch, 10)
	return MappingSpec{
		Name: NamePrefix(u) + n, UUID: uuidPrefix + u.String() + "-" + n,
		Device: device, Payload: payload, Offset: crypt.DataOffset, Volume: u, Tuning: tuning,
		Discard: discard,
	}
}

// EpochOf returns the epoch in the name of the volume's mapping. ok is false for a name that
// Expected does not make.
func EpochOf(u crypt.UUID, name string) (epoch uint64, ok bool) {
	n, ok := strings.CutPrefix(name, NamePrefix(u))
	epoch, err := strconv.ParseUint(n, 10, 64)
	return epoch, ok && err == nil && n == strconv.FormatUint(epoch, 10)
}

// VolumeOf returns the volume and epoch in the name of a mapping. ok is false for a name that
// Expected does not make.
func VolumeOf(name string) (u crypt.UUID, epoch uint64, ok bool) {
	rest, ok := strings.CutPrefix(name, namePrefix)
	i := strings.LastIndexByte(rest, '-')
	if !ok || i < 0 || u.UnmarshalText([]byte(rest[:i])) != nil {
		return crypt.UUID{}, 0, false
	}
	epoch, ok = EpochOf(u, name)
	return u, epoch, ok
}

// sectorBits is the binary logarithm of device-mapper's sector size, 512 bytes.
const sectorBits = 9

// params returns the target's argument line (Documentation/admin-guide/device-mapper/dm-crypt.rst)
// with those flags.
func (t MappingSpec) params(flags []string) string {
	args := append([]string{"sector_size:" + strconv.Itoa(crypt.SectorSize)}, flags...)
	if t.Discard {
		args = append(args, "allow_discards")
	}
	return fmt.Sprintf("%s %s 0 %d:%d %d %d %s", crypt.Cipher, t.keyField(), unix.Major(t.Device),
		unix.Minor(t.Device), t.Offset>>sectorBits,
		len(args), strings.Join(args, " "))
}

// keyField returns the reference to the key: its size, type and description in the keyring.
func (t MappingSpec) keyField() string {
	return fmt.Sprintf(":%d:logon:%s%s", crypt.KeySize, keyPrefix, t.Volume)
}

// Mapping is a mapping as the kernel reports it. It does not contain the key.
type Mapping struct {
	Name, UUID string
	// Number is the device number, Path the path of the device.
	Number uint64
	Path   string
	// Open is the number of times that the mapping is open.
	Open int
	// Suspended means that requests are held back. Inactive means that a second table is loaded.
	Suspended, Inactive, ReadOnly bool
	Targets                       []Target
}

// Target is one line of a table.
type Target struct {
	// Start and Length are in bytes.
	Start, Length int64
	Type          string
	// params is the argument line, with any key redacted.
	params string
}

// Differs returns a text that describes how m differs from the live mapping of t. It returns an
// empty string if they are equal. It ignores tuning flags.
func (t MappingSpec) Differs(m Mapping) string {
	switch {
	case m.UUID != t.UUID:
		return fmt.Sprintf("uuid: expected %s, found %q", t.UUID, m.UUID)
	case m.Suspended || m.Inactive || m.ReadOnly:
		return fmt.Sprintf("state: expected live and writable, found suspended %v, second table "+
			"%v, read-only %v", m.Suspended, m.Inactive, m.ReadOnly)
	case len(m.Targets) != 1 || m.Targets[0].Type != "crypt":
		return fmt.Sprintf("table: expected one crypt target, found %v", m.kinds())
	case m.Targets[0].Start != 0 || m.Targets[0].Length != t.Payload:
		return fmt.Sprintf("size: expected %d bytes, found %d from %d", t.Payload,
			m.Targets[0].Length, m.Targets[0].Start)
	}
	return differs(strings.Fields(t.params(nil)), strings.Fields(m.Targets[0].params))
}

// argNames are the names of the first arguments of a crypt target, for messages.
var argNames = []string{"cipher", "key", "IV offset", "device", "offset"}

func differs(want, have []string) string {
	const fixedArgs = 5
	if len(have) < fixedArgs {
		return fmt.Sprintf("table: expected %d arguments, found %d", len(want), len(have))
	}
	for i, name := range argNames {
		if want[i] != have[i] {
			return fmt.Sprintf("%s: expected %s, found %s", name, want[i], have[i])
		}
	}
	options := func(args []string) []string {
		if len(args) > fixedArgs {
			args = args[fixedArgs+1:]
		} else {
			args = nil
		}
		args = slices.DeleteFunc(slices.Clone(args),
			func(a string) bool { return slices.Contains(tuningFlags, a) })
		slices.Sort(args)
		return args
	}
	if w, h := options(want), options(have); !slices.Equal(w, h) {
		return fmt.Sprintf("options: expected %v, found %v", w, h)
	}
	return ""
}

// Ours reports whether the mapping has the name and the UUID of Expected, so that this package made
// it.
func (m Mapping) Ours() bool {
	volume, ok := strings.CutPrefix(m.Name, namePrefix)
	return ok && m.UUID == uuidPrefix+volume
}

// Below returns the number of the device below a mapping with one crypt target. ok is false for any
// other mapping.
func (m Mapping) Below() (number uint64, ok bool) {
	const device = 3 // crypt: cipher, key, IV offset, device, offset
	if len(m.Targets) != 1 || m.Targets[0].Type != "crypt" {
		return 0, false
	}
	args := strings.Fields(m.Targets[0].params)
	if len(args) <= device {
		return 0, false
	}
	var major, minor uint32
	if n, err := fmt.Sscanf(args[device], "%d:%d", &major, &minor); n != 2 || err != nil {
		return 0, false
	}
	return unix.Mkdev(major, minor), true
}

// Dead reports whether no request to the mapping can reach a disk, because it was fenced or never
// had a table.
func (m Mapping) Dead() bool {
	return !slices.ContainsFunc(m.Targets, func(t Target) bool { return t.Type != "error" })
}

func (m Mapping) kinds() []string {
	var kinds []string
	for _, t := range m.Targets {
		kinds = append(kinds, t.Type)
	}
	return kinds
}

// redactParams replaces a key in the argument line of a crypt target. It keeps a reference to the
// keyring, which does not contain the key.
func redactParams(targetType, params string) string {
	f := strings.Fields(params)
	if targetType != "crypt" || len(f) < 2 || strings.HasPrefix(f[1], ":") {
		return params
	}
	f[1] = "redacted"
	return strings.Join(f, " ")
}

// Mapping returns the mapping that the kernel reports once t is live, without number, path and open
// count.
func (t MappingSpec) Mapping() Mapping {
	return Mapping{Name: t.Name, UUID: t.UUID,
		Targets: []Target{{Length: t.Payload, Type: "crypt", params: t.params(t.Tuning.flags())}}}
}
