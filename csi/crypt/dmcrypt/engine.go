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
	// ErrNoMapping matches when no mapping has that name.
	ErrNoMapping = errors.New("no such mapping")
	// ErrExists matches when there is a mapping of that name already.
	ErrExists = errors.New("mapping exists")
	// ErrInUse matches when a mapping is open.
	ErrInUse = errors.New("mapping is in use")
	// ErrNotSupported matches when this kernel, or the sandbox of the process, lacks something; the
	// message names it.
	ErrNotSupported = errors.New("not supported here")
)

// Tuning is the kind of work that a mapping is tuned for.
type Tuning string

// The tunings.
const (
	// Throughput uses dm-crypt's queues and sends writes from the processors that encrypted them.
	Throughput Tuning = "throughput"
	// Latency encrypts on the requesting processor, without queues: for small requests on fast
	// disks.
	Latency Tuning = "latency"
)

// flags are the dm-crypt arguments of the tuning. A kernel that lacks one of them gets none.
func (c Tuning) flags() []string {
	switch c {
	case Latency:
		return []string{"no_read_workqueue", "no_write_workqueue"}
	case Throughput:
		return []string{"submit_from_crypt_cpus"}
	}
	return nil
}

// tuningFlags are the flags that change only how fast a mapping is.
var tuningFlags = append(Throughput.flags(), Latency.flags()...)

// Engine makes mappings. Its methods may be called from several goroutines, for different names.
type Engine interface {
	// Answer returns ErrNotSupported if there is no usable device-mapper. It waits for neither a
	// disk nor another call.
	Answer(ctx context.Context) error
	// Create makes the mapping of t with key, live, and returns it. After an error the mapping does
	// not exist. The error is ErrExists if the name is taken.
	Create(ctx context.Context, t MappingSpec, key *keyring.Secret) (Mapping, error)
	// Lookup returns the mapping of that name, or ErrNoMapping if there is none.
	Lookup(ctx context.Context, name string) (Mapping, error)
	// List returns the names of all mappings that begin with prefix.
	List(ctx context.Context, prefix string) ([]string, error)
	// Probe reads the first sectors of the mapping from its disk.
	Probe(ctx context.Context, name string) error
	// Resize replaces the table of t.Name by t, which differs only in size. After an error the
	// mapping is live and unchanged. A process that dies in between leaves the old table, perhaps
	// suspended, and perhaps a second one loaded.
	Resize(ctx context.Context, t MappingSpec, key *keyring.Secret) error
	// Suspend waits for requests under way and holds back later ones; a file system on the mapping
	// is flushed and frozen. suspended false resumes the mapping with its live table and drops a
	// second one; it does nothing to a mapping that is live. The suspension outlives the process.
	Suspend(ctx context.Context, name string, suspended bool) error
	// Fence fails every request to the mapping, also those held back, and makes the kernel drop the
	// key.
	Fence(ctx context.Context, name string) error
	// Remove removes the mapping. It returns nil for a missing one. An open mapping is ErrInUse, or
	// is removed on its last close if deferred is allowed.
	Remove(ctx context.Context, name string, deferred bool) error
}

// MappingSpec is the dm-crypt mapping that should exist.
type MappingSpec struct {
	// Name and UUID are its names in device-mapper.
	Name, UUID string
	// Device is the number of the block device below.
	Device uint64
	// Payload is the size in bytes; Offset is its start on the device.
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

// NamePrefixAll begins the names of all mappings of volumes.
const NamePrefixAll = namePrefix

// NamePrefix returns what the names of all mappings of the volume begin with, of any epoch.
func NamePrefix(u crypt.UUID) string { return namePrefix + u.String() + "-" }

// NewMappingSpec returns the table of a verified record on the device of that number.
func NewMappingSpec(r crypt.Record, device uint64, tuning Tuning, discard bool) MappingSpec {
	t := Expected(r.UUID, r.Epoch, r.Payload, device, tuning, discard)
	t.Offset = r.Offset()
	return t
}

// Expected returns the table that the volume's mapping must have by the trusted state, to compare a
// found mapping with. Each epoch has its own names, so an old mapping that is still open blocks no
// new one.
func Expected(u crypt.UUID, epoch uint64, payload int64, device uint64, tuning Tuning,
	discard bool) MappingSpec {
	n := strconv.FormatUint(epoch, 10)
	return MappingSpec{
		Name: NamePrefix(u) + n, UUID: uuidPrefix + u.String() + "-" + n,
		Device: device, Payload: payload, Offset: crypt.DataOffset, Volume: u, Tuning: tuning,
		Discard: discard,
	}
}

// EpochOf returns the epoch in the name of the volume's mapping; ok is false for a name that
// Expected does not make.
func EpochOf(u crypt.UUID, name string) (epoch uint64, ok bool) {
	n, ok := strings.CutPrefix(name, NamePrefix(u))
	epoch, err := strconv.ParseUint(n, 10, 64)
	return epoch, ok && err == nil && n == strconv.FormatUint(epoch, 10)
}

// VolumeOf returns the volume and epoch in the name of a mapping; ok is false for a name that
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

// sectorBits: device-mapper counts in sectors of 512 bytes.
const sectorBits = 9

// params is the target's argument line (Documentation/admin-guide/device-mapper/dm-crypt.rst) with
// those flags.
func (t MappingSpec) params(flags []string) string {
	args := append([]string{"sector_size:" + strconv.Itoa(crypt.SectorSize)}, flags...)
	if t.Discard {
		args = append(args, "allow_discards")
	}
	return fmt.Sprintf("%s %s 0 %d:%d %d %d %s", crypt.Cipher, t.keyField(), unix.Major(t.Device),
		unix.Minor(t.Device), t.Offset>>sectorBits,
		len(args), strings.Join(args, " "))
}

// keyField names the key: its size, type and description in the keyring.
func (t MappingSpec) keyField() string {
	return fmt.Sprintf(":%d:logon:%s%s", crypt.KeySize, keyPrefix, t.Volume)
}

// Mapping is a mapping as the kernel shows it. It holds no key.
type Mapping struct {
	Name, UUID string
	// Number is its device number, Path its device node.
	Number uint64
	Path   string
	// Open counts how often it is open.
	Open int
	// Suspended: requests are held back. Inactive: a second table is loaded.
	Suspended, Inactive, ReadOnly bool
	Targets                       []Target
}

// Target is one line of a table.
type Target struct {
	// Start and Length are bytes.
	Start, Length int64
	Type          string
	// params is the argument line, with any key redacted.
	params string
}

// Differs returns how m differs from the live mapping of t, or an empty string. Flags that only
// tune are not compared.
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

// argNames name the words of a crypt target, for messages.
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

// Ours reports whether the mapping has names that Expected makes, so that a Kernel made it.
func (m Mapping) Ours() bool {
	volume, ok := strings.CutPrefix(m.Name, namePrefix)
	return ok && m.UUID == uuidPrefix+volume
}

// Below returns the number of the device below a mapping with one crypt target; ok is false for any
// other.
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

// Dead reports whether no request to the mapping can reach a disk: it was fenced, or never had a
// table.
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

// redactParams removes a key from the argument line of a crypt target. A reference to the keyring
// does not contain the key and stays.
func redactParams(targetType, params string) string {
	f := strings.Fields(params)
	if targetType != "crypt" || len(f) < 2 || strings.HasPrefix(f[1], ":") {
		return params
	}
	f[1] = "redacted"
	return strings.Join(f, " ")
}

// Mapping returns what the kernel shows of t once it is live, without number, path and open count.
func (t MappingSpec) Mapping() Mapping {
	return Mapping{Name: t.Name, UUID: t.UUID,
		Targets: []Target{{Length: t.Payload, Type: "crypt", params: t.params(t.Tuning.flags())}}}
}
