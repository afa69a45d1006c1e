package pod

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/internal/atomicfile"
	"github.com/kubeveil/kubeveil/pkg/abi"
)

const recordSuffix = ".json"

// ErrNotFound matches errors for a record, a link or a namespace that does not exist.
var ErrNotFound = fs.ErrNotExist

// Record describes an attachment: one interface of one container. It holds the plugin's input and
// the addresses from IPAM, but no values that the kernel chose.
type Record struct {
	// Network is the name of the CNI network.
	Network string `json:"network"`
	// ContainerID and IfName are CNI_CONTAINERID and CNI_IFNAME.
	ContainerID string `json:"containerID"`
	IfName      string `json:"ifName"`
	// Netns is CNI_NETNS: the path of the pod's network namespace.
	Netns string `json:"netns"`
	// HostLink is the name of the veth's end on the node: HostLink(ContainerID, IfName).
	HostLink string `json:"hostLink"`
	// Addrs are the pod's addresses, at most one of each family.
	Addrs []netip.Addr `json:"addrs"`
	// MTU is the MTU in bytes of both ends of the veth and of the pod's default routes.
	MTU int `json:"mtu"`
	// Workload is the pod in Kubernetes. It is the zero value if the runtime did not name it.
	Workload Workload `json:"workload,omitzero"`
	// HostPorts are the ports of the node that the plugin portmap translates to this pod. Nil means
	// that they are unknown, as in a record of an earlier version.
	HostPorts []HostPort `json:"hostPorts"`
	// Took is the duration of the ADD; 0 means unknown.
	Took time.Duration `json:"took,omitempty"`

	// other is a JSON object with the fields that this version does not define, in compact form;
	// nil means none. They are written back, so that another version that defines them still finds
	// them.
	other json.RawMessage
}

// HostPort is a port of the node that the plugin portmap translates to a port of a pod.
type HostPort struct {
	// Addr is the node's address. The zero Addr means each address of the node.
	Addr netip.Addr `json:"addr,omitzero"`
	Port uint16     `json:"port"`
	// PodPort is the port of the pod.
	PodPort uint16 `json:"podPort"`
	// UDP reports whether the port is of UDP. Otherwise it is of TCP.
	UDP bool `json:"udp,omitempty"`
}

// recordFields are the names of the fields that this version defines.
var recordFields = func() (names []string) {
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Record]()) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
			names = append(names, name)
		}
	}
	return names
}()

// UnmarshalJSON implements json.Unmarshaler.
func (r *Record) UnmarshalJSON(data []byte) error {
	type record Record
	var known record
	if err := json.Unmarshal(data, &known); err != nil {
		return err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return err
	}
	maps.DeleteFunc(fields, func(name string, _ json.RawMessage) bool {
		// encoding/json matches names in the same way, without regard to case.
		return slices.ContainsFunc(recordFields,
			func(f string) bool { return strings.EqualFold(f, name) })
	})
	*r = Record(known)
	if len(fields) == 0 {
		return nil
	}
	var err error
	r.other, err = json.Marshal(fields)
	return err
}

// MarshalJSON implements json.Marshaler.
func (r Record) MarshalJSON() ([]byte, error) {
	type record Record
	text, err := json.Marshal(record(r))
	if err != nil || r.other == nil {
		return text, err
	}
	text[len(text)-1] = ','
	return append(text, r.other[1:]...), nil
}

// HostLink returns the name of the host end of an attachment's veth. It has 15 bytes, the longest
// name that the kernel allows (IFNAMSIZ minus the terminating zero).
func HostLink(containerID, ifName string) string {
	sum := identity(containerID, ifName)
	return abi.PodLinkPrefix + hex.EncodeToString(sum[:6])[:11]
}

// identity returns a hash of what identifies an attachment on a node. A container id contains no
// zero byte (CNI: alphanumerics, dot, dash, underscore), so different attachments have different
// inputs.
func identity(containerID, ifName string) [sha256.Size]byte {
	return sha256.Sum256([]byte(containerID + "\x00" + ifName))
}

// HostMAC returns the hardware address of the veth's end on the node. It is locally administered
// and derived from the attachment, so it is known before the link exists.
func (r Record) HostMAC() net.HardwareAddr { return r.mac(8) }

// PodMAC returns the hardware address of the end inside the pod; see HostMAC.
func (r Record) PodMAC() net.HardwareAddr { return r.mac(16) }

func (r Record) mac(offset int) net.HardwareAddr {
	sum := identity(r.ContainerID, r.IfName)
	mac := net.HardwareAddr(bytes.Clone(sum[offset : offset+6]))
	mac[0] = mac[0]&^1 | 2 // unicast, locally administered
	return mac
}

// Validate returns an error if the record is invalid.
func (r Record) Validate() error {
	switch {
	case len(r.Addrs) == 0:
		return errors.New("no address")
	case r.Network == "" || r.ContainerID == "" || r.IfName == "":
		return errors.New("network, containerID or ifName is empty")
	case len(r.IfName) > 15:
		return fmt.Errorf("ifName %q is longer than 15 bytes", r.IfName)
	case r.HostLink != HostLink(r.ContainerID, r.IfName):
		return fmt.Errorf("hostLink %q does not belong to container %s, interface %s", r.HostLink,
			r.ContainerID, r.IfName)
	case r.MTU < MinMTU4 || r.MTU > MaxMTU:
		return fmt.Errorf("mtu %d is not between %d and %d", r.MTU, MinMTU4, MaxMTU)
	}

	var have4, have6 bool
	for _, a := range r.Addrs {
		switch {
		case !a.IsValid() || a.Zone() != "" || a.Is4In6() || a.IsUnspecified() || a.IsMulticast() ||
			a.IsLoopback() || a.IsLinkLocalUnicast():
			return fmt.Errorf("address %s cannot belong to a pod", a)
		case a.Is4() && have4, a.Is6() && have6:
			return fmt.Errorf("second address %s of its family: a pod has at most one IPv4 and "+
				"one IPv6 address", a)
		case a.Is6() && r.MTU < abi.MinPodMTU6:
			return fmt.Errorf("mtu %d is below %d, which IPv6 address %s needs (RFC 8200 "+
				"section 5)", r.MTU, abi.MinPodMTU6, a)
		}
		have4, have6 = have4 || a.Is4(), have6 || a.Is6()
	}

	return nil
}

// Bounds of a pod's MTU, bytes: the minimum of RFC 791 section 3.2, and the maximum of the veth
// driver.
const (
	MinMTU4 = 68
	MaxMTU  = 65535
)

// ParseRecord parses and validates a record of this or another version. Fields that this version
// does not define are kept in the record.
func ParseRecord(data []byte) (Record, error) {
	var r Record
	d := json.NewDecoder(bytes.NewReader(data))
	if err := d.Decode(&r); err != nil {
		return Record{}, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Record{}, errors.New("data after the record")
	}
	return r, r.Validate()
}

// write writes the record to its file, with mode 0600, and replaces an existing one.
func (p Paths) write(r Record) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(p.record(r.HostLink), data, 0o600); err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	return nil
}

// NoteTook writes the duration of the ADD into the record. It keeps concurrent changes of the
// daemon.
func (p Paths) NoteTook(hostLink string, took time.Duration) error {
	unlock, err := p.lock(hostLink)
	if err != nil {
		return err
	}
	defer unlock()
	r, err := p.Load(hostLink)
	if err != nil {
		return err
	}
	r.Took = took
	return p.write(r)
}

// Load reads the record of a host link. The error matches ErrNotFound if there is no record.
func (p Paths) Load(hostLink string) (Record, error) {
	path := p.record(hostLink)
	data, err := os.ReadFile(path)
	if err != nil {
		return Record{}, fmt.Errorf("read record: %w", err)
	}
	r, err := ParseRecord(data)
	if err != nil {
		return Record{}, fmt.Errorf("read record %s: %w", path, err)
	}
	if r.HostLink != hostLink {
		return Record{}, fmt.Errorf("read record %s: it belongs to %s", path, r.HostLink)
	}
	return r, nil
}

// List returns all records, sorted by host link. Records that cannot be read are left out. The
// error, which may come together with records, names them. A directory that does not exist counts
// as empty. Some of the pods may still be in Attach, which holds their lock.
func (p Paths) List() ([]Record, error) { return new(Cache).List(p) }

// links returns the host links that have a record, sorted.
func (p Paths) links() (links []string, err error) {
	entries, err := os.ReadDir(p.PodDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list records: %w", err)
	}
	for _, e := range entries {
		link, ok := strings.CutSuffix(e.Name(), recordSuffix)
		if ok && strings.HasPrefix(link, abi.PodLinkPrefix) && filepath.Base(link) == link {
			links = append(links, link)
		}
	}
	return links, nil
}

func (p Paths) removeRecord(hostLink string) error {
	if err := os.Remove(p.record(hostLink)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove record: %w", err)
	}
	return nil
}
