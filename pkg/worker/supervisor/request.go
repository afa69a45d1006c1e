package supervisor

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/cluster"
)

// Request is a request for a device. It is the content of the file <dir>/<device>.json. The device
// exists as long as the file.
type Request struct {
	// Device is the name of the TUN: abi.TunnelDevicePrefix and a number.
	Device string `json:"device"`
	// MTU is the MTU of a new TUN, bytes. An existing TUN keeps its MTU.
	MTU int `json:"mtu"`
}

// maxRequest bounds the size of a request file, bytes.
const maxRequest = 64 << 10

// requestSuffix is the suffix of a request file's name.
const requestSuffix = ".json"

// ParseRequest parses the content of a request file. It ignores unknown fields, because veild may
// be newer than veil-wg: veil-wg is updated only when its pod is deleted.
func ParseRequest(data []byte) (Request, error) {
	var r Request
	if len(data) > maxRequest {
		return Request{}, fmt.Errorf("device request is larger than %d bytes", maxRequest)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	if err := d.Decode(&r); err != nil {
		return Request{}, fmt.Errorf("parse device request: %w", err)
	}
	if d.More() {
		return Request{}, fmt.Errorf("parse device request: text after the object")
	}
	if err := CheckName(r.Device); err != nil {
		return Request{}, err
	}
	// A larger packet does not fit an outer packet over IPv4 (cluster.TunnelMTU).
	if most := cluster.MaxMTU - cluster.OuterOverhead(false); r.MTU < cluster.MinMTU4 || r.MTU > most {
		return Request{}, fmt.Errorf("device request %s: mtu %d is not between %d and %d", r.Device,
			r.MTU, cluster.MinMTU4, most)
	}
	return r, nil
}

// CheckName returns an error if name is not a name of a tunnel device. So it also refuses any path.
func CheckName(name string) error {
	digits, ok := strings.CutPrefix(name, abi.TunnelDevicePrefix)
	if !ok || digits == "" || len(name) > 15 || strings.Trim(digits, "0123456789") != "" {
		return fmt.Errorf("device name %q: want %q and a number, at most 15 characters", name,
			abi.TunnelDevicePrefix)
	}
	return nil
}
