package pod

import (
	"path/filepath"

	"github.com/kubeveil/kubeveil/pkg/abi"
)

// Paths are the paths of records and of the state that Attach checks. Use DefaultPaths on a node.
// Tests and the namespace lab use other paths.
type Paths struct {
	// PodDir holds a record for each attached pod interface.
	PodDir string
	// BPFDir holds the pinned programs and maps.
	BPFDir string
	// ReadyFile is the marker that veild writes after its first apply.
	ReadyFile string
	// PolicyDir holds reservations of groups of policies. If it is empty, policies are never
	// enforced.
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
