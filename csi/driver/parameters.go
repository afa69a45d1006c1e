package driver

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/csi/crypt/dmcrypt"
	"github.com/kubeveil/kubeveil/csi/keyring"
)

// Names of the parameters of a StorageClass.
const (
	paramTuning  = "tuning"
	paramDiscard = "discard"
	paramFsck    = "fsck"
	paramBackend = "backend"
	paramKeys    = "keys"
	paramCopies  = "copies"
)

// reserved is the prefix of the parameters that Kubernetes' side-cars add. The driver ignores them.
const reserved = "csi.storage.k8s.io/"

// Backends.
const (
	// BackendFile keeps each volume in a file.
	BackendFile = "file"
	// BackendDisk assigns a whole disk to each volume.
	BackendDisk = "disk"
)

var backends = []string{BackendFile, BackendDisk}

// Discard is the policy that decides when free blocks are discarded on the disk.
type Discard string

// The discard policies. Discards show the disk's owner which blocks of the volume are free. Only
// never hides that.
const (
	DiscardNever Discard = "never"
	// DiscardBatch discards at the interval of the daemon's upkeep: see Driver.Trim.
	DiscardBatch  Discard = "batch"
	DiscardOnline Discard = "online"
)

// Fsck is the policy that decides how a file system is checked before it is mounted.
type Fsck string

// The fsck policies.
const (
	FsckPreen Fsck = "preen"
	FsckNever Fsck = "never"
)

// Copies is the policy that decides how a copy may differ from its source. The administrator sets
// it in the class, so that a tenant's claim cannot.
type Copies string

// The policies for copies. CopiesSame is the default: a copy has the volumeMode of its source. The
// same provider wraps its key, because both share the data key.
const (
	CopiesSame    Copies = "same"
	CopiesAnyMode Copies = "any-mode"
	CopiesAnyKeys Copies = "any-keys"
	CopiesAny     Copies = "any"
)

func (c Copies) otherMode() bool { return c == CopiesAnyMode || c == CopiesAny }

func (c Copies) otherKeys() bool { return c == CopiesAnyKeys || c == CopiesAny }

// Parameters are the parameters of a StorageClass.
type Parameters struct {
	Tuning  dmcrypt.Tuning
	Discard Discard
	Fsck    Fsck
	Backend string
	Keys    string
	Copies  Copies
}

// values lists the values of each parameter.
var values = map[string][]string{
	paramTuning:  {string(dmcrypt.Throughput), string(dmcrypt.Latency)},
	paramDiscard: {string(DiscardNever), string(DiscardBatch), string(DiscardOnline)},
	paramFsck:    {string(FsckPreen), string(FsckNever)},
	paramBackend: backends,
	paramKeys:    {keyring.NameKMS, keyring.NameSecret, keyring.NameFile},
	paramCopies: {string(CopiesSame), string(CopiesAnyMode), string(CopiesAnyKeys),
		string(CopiesAny)},
}

// ParameterValues returns the values of each parameter of a class. The default is the first value.
func ParameterValues() map[string][]string { return maps.Clone(values) }

// parse parses the parameters of a class or of a volume context. Missing parameters get their
// default.
func (d *Driver) parse(given map[string]string) (Parameters, error) {
	m := d.Defaults.Map()
	for name, value := range given {
		if strings.HasPrefix(name, reserved) {
			continue
		}
		if _, ok := values[name]; !ok {
			return Parameters{}, invalid("unknown parameter %q: known are %s", name,
				strings.Join(slices.Sorted(maps.Keys(values)), ", "))
		}
		m[name] = value
	}
	p := fromMap(m)
	if err := p.check(); err != nil {
		return p, err
	}
	return p, d.configured(p)
}

// Map returns the parameters by name, for a volume context. It leaves out Copies at its default, so
// that the text equals the text in states that were written before Copies existed.
func (p Parameters) Map() map[string]string {
	m := map[string]string{paramTuning: string(p.Tuning), paramDiscard: string(p.Discard),
		paramFsck: string(p.Fsck), paramBackend: p.Backend, paramKeys: p.Keys}
	if p.Copies != CopiesSame {
		m[paramCopies] = string(p.Copies)
	}
	return m
}

func fromMap(m map[string]string) Parameters {
	p := Parameters{dmcrypt.Tuning(m[paramTuning]), Discard(m[paramDiscard]), Fsck(m[paramFsck]),
		m[paramBackend], m[paramKeys], Copies(m[paramCopies])}
	if p.Copies == "" {
		p.Copies = CopiesSame
	}
	return p
}

// String returns the parameters as name=value pairs in alphabetical order. The state of a volume
// keeps this text.
func (p Parameters) String() string {
	m := p.Map()
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(m)) {
		parts = append(parts, name+"="+m[name])
	}
	return strings.Join(parts, ",")
}

// absent holds the values of parameters that a volume's state lacks. It must never change, and does
// not depend on the flags of this node: an existing volume keeps its parameters.
var absent = Parameters{Tuning: dmcrypt.Throughput, Discard: DiscardNever, Fsck: FsckPreen,
	Backend: BackendFile, Keys: keyring.NameKMS, Copies: CopiesSame}

// kept parses a text that String wrote. It accepts a provider or backend that is not configured any
// more, so that the volume can still be unmounted and deleted.
func (d *Driver) kept(text string) (Parameters, error) {
	m := absent.Map()
	for part := range strings.SplitSeq(text, ",") {
		if name, value, ok := strings.Cut(part, "="); ok && values[name] != nil {
			m[name] = value
		}
	}
	p := fromMap(m)
	return p, p.check()
}

// check returns an error if a value is unknown.
func (p Parameters) check() error {
	for name, value := range p.Map() {
		if !slices.Contains(values[name], value) {
			return invalid("parameter %s: %q is not one of %s", name, value,
				strings.Join(values[name], ", "))
		}
	}
	return nil
}

// configured returns an error if this node lacks the backend or the key provider.
func (d *Driver) configured(p Parameters) error {
	if d.Sets[p.Backend] == nil {
		return invalid("parameter %s: %s is not configured on node %s: %s", paramBackend, p.Backend,
			d.Node, strings.Join(slices.Sorted(maps.Keys(d.Sets)), ", "))
	}
	if p.Keys != keyring.NameSecret && d.Keys[p.Keys] == nil {
		return invalid("parameter %s: %s is not configured on node %s; %s always is, with a "+
			"secret that the class names", paramKeys, p.Keys, d.Node, keyring.NameSecret)
	}
	return nil
}

// complete sets the empty fields of p to the program's defaults.
func (d *Driver) complete(p Parameters) (Parameters, error) {
	setDefault := func(have *string, configured func(string) bool, of []string) {
		if i := slices.IndexFunc(of, configured); *have == "" && i >= 0 {
			*have = of[i]
		}
	}
	setDefault(&p.Backend, func(name string) bool { return d.Sets[name] != nil }, backends)
	setDefault(&p.Keys, func(name string) bool { return d.Keys[name] != nil },
		[]string{keyring.NameKMS, keyring.NameFile})
	setDefault(&p.Keys, func(string) bool { return true }, []string{keyring.NameSecret})
	for name, have := range map[string]*string{paramTuning: (*string)(&p.Tuning),
		paramDiscard: (*string)(&p.Discard), paramFsck: (*string)(&p.Fsck),
		paramCopies: (*string)(&p.Copies)} {
		setDefault(have, func(string) bool { return true }, values[name])
	}
	if err := errors.Join(p.check(), d.configured(p)); err != nil {
		return p, fmt.Errorf("defaults: %w", err)
	}
	return p, nil
}

// provider returns the key provider for a volume with these parameters. The caller calls giveBack
// when the call ends; it wipes a key that came with the request. The provider is nil if the request
// lacks the key that it should bring, or if the provider is no longer configured.
func (d *Driver) provider(p Parameters,
	secrets map[string]string) (keys keyring.Provider, giveBack func(), err error) {
	nothing := func() {}
	if p.Keys != keyring.NameSecret {
		return d.Keys[p.Keys], nothing, nil
	}
	if len(secrets) == 0 {
		return nil, nothing, nil
	}
	keys, err = d.fromSecrets(secrets)
	if w, ok := keys.(keyring.Wiper); ok && err == nil {
		return keys, w.Wipe, nil
	}
	return keys, nothing, err
}

// needProvider calls provider, and returns an error instead of a nil provider. names is the part of
// the class's secret parameter that names the kind of call, such as node-stage-secret.
func (d *Driver) needProvider(p Parameters, secrets map[string]string,
	names string) (keys keyring.Provider, giveBack func(), err error) {
	keys, giveBack, err = d.provider(p, secrets)
	switch {
	case err != nil || keys != nil:
	case p.Keys != keyring.NameSecret:
		err = failed("the volume has keys: %s, which is not configured on node %s any more", p.Keys,
			d.Node)
	default:
		err = invalid("the class has keys: %s, and this request brings no secret: set %s%s-name "+
			"and -namespace in the class", keyring.NameSecret, reserved, names)
	}
	return keys, giveBack, err
}
