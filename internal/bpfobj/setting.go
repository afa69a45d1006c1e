package bpfobj

import (
	"fmt"

	"github.com/cilium/ebpf"
)

// Set sets constants in the programs of spec. The keys of settings are the names of the constants
// in C. It returns an error for a name that the programs do not have, so that a misspelt setting
// does not silently keep its default. A value of another size is an error too.
func Set(spec *ebpf.CollectionSpec, settings map[string]any) error {
	for name, value := range settings {
		v := spec.Variables[name]
		if v == nil {
			return fmt.Errorf("set %s: the programs have no such setting", name)
		}
		if err := v.Set(value); err != nil {
			return fmt.Errorf("set %s: %w", name, err)
		}
	}
	return nil
}
