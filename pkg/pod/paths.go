package pod

import (
	"path/filepath"

	"github.com/kubeveil/kubeveil/pkg/abi"
)

// Paths are the places of records and pinned BPF objects; tests and the namespace lab have their
// own. It is a value; use DefaultPaths on a node.
type Paths struct {
	// PodDir holds a record for each attached pod interface.
	PodDir string
	// BPFDir holds the pinned programs and maps.
	BPFDir string
	// ReadyFile is the marker that veild writes after its first apply.
	ReadyFile string
	// PolicyDir holds reservations of groups. Empty means that no policies are enforced.
	PolicyDir string
}

// DefaultPaths returns the paths that package abi names.
func DefaultPaths() Paths {
	return Paths{PodDir: abi.PodDir, BPFDir: abi.BPFDir, ReadyFile: abi.ReadyFile,
		PolicyDir: abi.PolicyDir}
}

func (p Paths) pin(name string) string { return filepath.Join(p.BPFDir, name) }

func (p Paths) record(hostLink string) string {
	return filepath.Join(p.PodDir, hostLink+recordSuffix)
}
