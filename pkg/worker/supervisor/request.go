package supervisor

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/cluster"
)

// Request is a request for a device. It is the content of <dir>/<device>.json; the device exists as
// long as the file does.
type Request struct {
	// Device is the name of the TUN: abi.TunnelDevicePrefix and a number.
	Device string `json:"device"`
	// MTU is the MTU in bytes of a new TUN. An existing TUN keeps its own.
	MTU int `json:"mtu"`
}

// maxRequest bounds the content of a request's file, bytes.
const maxRequest = 64 << 10

// requestSuffix ends the name of a request's file.
const requestSuffix = ".json"

// ParseRequest reads the content of a request's file. It ignores unknown fields: veil-wg is
// replaced later than veild, when its pod is deleted.
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

// CheckName refuses a name that is not a name of a tunnel, hence also any path.
func CheckName(name string) error {
	digits, ok := strings.CutPrefix(name, abi.TunnelDevicePrefix)
	if !ok || digits == "" || len(name) > 15 || strings.Trim(digits, "0123456789") != "" {
		return fmt.Errorf("device name %q: want %q and a number, at most 15 characters", name,
			abi.TunnelDevicePrefix)
	}
	return nil
}
