package main

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/kubeveil/kubeveil/pkg/cniplugin"
)

// installCNI runs `veild install-cni FROM TO`.
func installCNI(args []string) error {
	if len(args) != 2 {
		return errors.New("install-cni takes two directories: veild install-cni /opt/cni/bin " +
			"/host/opt/cni/bin")
	}
	wrote, err := cniplugin.Install(args[0], args[1])
	for _, name := range wrote {
		fmt.Println("installed", filepath.Join(args[1], name))
	}
	return err
}
