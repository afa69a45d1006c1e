package bpfobj

import (
	"fmt"

	"github.com/cilium/ebpf"
)

// Set sets constants of the programs of spec, by the names that they have in C. A name that the
// programs do not have, or a value of another size, is an error: a setting that is renamed or
// misspelt on one side would keep its default and no error would show it.
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
