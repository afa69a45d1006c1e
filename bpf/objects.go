//go:build 386 || amd64 || arm || arm64 || loong64 || mips64le || mipsle || ppc64le || riscv64

package bpf

import (
	"bytes"
	_ "embed"
	"fmt"

	"github.com/cilium/ebpf"
)

// The objects are little-endian, so this file is only built for little-endian CPUs.
var (
	//go:embed guardingress_bpfel.o
	guardIngress []byte
	//go:embed guardegress_bpfel.o
	guardEgress []byte
	//go:embed servicesocket_bpfel.o
	serviceSocket []byte
	//go:embed servicepacket_bpfel.o
	servicePacket []byte
)

// LoadGuardIngress returns the programs and maps of progs/guard_ingress.c. The caller may change
// them, because each call returns new copies.
func LoadGuardIngress() (*ebpf.CollectionSpec, error) {
	return read("guard_ingress", guardIngress)
}

// LoadGuardEgress returns the programs and maps of progs/guard_egress.c.
func LoadGuardEgress() (*ebpf.CollectionSpec, error) {
	return read("guard_egress", guardEgress)
}

// LoadServiceSocket returns the programs and maps of progs/service_socket.c.
func LoadServiceSocket() (*ebpf.CollectionSpec, error) {
	return read("service_socket", serviceSocket)
}

// LoadServicePacket returns the programs and maps of progs/service_packet.c.
func LoadServicePacket() (*ebpf.CollectionSpec, error) {
	return read("service_packet", servicePacket)
}

func read(name string, object []byte) (*ebpf.CollectionSpec, error) {
	spec, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(object))
	if err != nil {
		return nil, fmt.Errorf("read object %s: %w", name, err)
	}
	return spec, nil
}
