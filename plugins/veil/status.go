package main

import (
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
)

// status is the verb STATUS. It returns an error if an ADD would fail because the data path is not
// in place or the IPAM plugin is missing.
func (p *plugin) status(args *skel.CmdArgs) error {
	conf, err := parseValid(args.StdinData)
	if err != nil {
		return err
	}
	if err := p.open(conf); err != nil {
		return coded(types.ErrPluginNotAvailable, err)
	}
	if _, err := findIPAM(args); err != nil {
		return coded(types.ErrPluginNotAvailable, err)
	}
	return nil
}
