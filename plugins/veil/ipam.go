package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
)

// ipam runs the IPAM plugin, which is found in CNI_PATH, for one attachment.
type ipam struct {
	path string
	args skel.CmdArgs
}

func findIPAM(args *skel.CmdArgs) (*ipam, error) {
	path, err := invoke.FindInPath(ipamType, filepath.SplitList(args.Path))
	if err != nil {
		return nil, fmt.Errorf("find IPAM plugin %s: %w; install the reference CNI plugins "+
			"beside veil", ipamType, err)
	}
	return &ipam{path: path, args: *args}, nil
}

// of returns an ipam for another attachment.
func (i *ipam) of(containerID, ifName string) *ipam {
	other := *i
	other.args.ContainerID, other.args.IfName, other.args.Netns = containerID, ifName, ""
	return &other
}

func (i *ipam) env(command string) *invoke.Args {
	return &invoke.Args{
		Command: command, ContainerID: i.args.ContainerID, NetNS: i.args.Netns,
		PluginArgsStr: i.args.Args, IfName: i.args.IfName, Path: i.args.Path,
	}
}

// add runs ADD and returns the result and the reserved addresses in it.
func (i *ipam) add() (*current.Result, []netip.Addr, error) {
	raw, err := invoke.ExecPluginWithResult(context.Background(), i.path, i.args.StdinData,
		i.env("ADD"), nil)
	if err != nil {
		return nil, nil, err
	}
	result, err := current.NewResultFromResult(raw)
	if err != nil {
		return nil, nil, fmt.Errorf("read result of %s: %w", ipamType, err)
	}
	var addrs []netip.Addr
	for _, ip := range result.IPs {
		addr, ok := netip.AddrFromSlice(ip.Address.IP)
		if !ok {
			return nil, nil, fmt.Errorf("result of %s has no address: %v", ipamType, ip)
		}
		addrs = append(addrs, addr.Unmap())
	}
	return result, addrs, nil
}

// run executes a command that has no result.
func (i *ipam) run(command string) error {
	return invoke.ExecPluginWithoutResult(context.Background(), i.path, i.args.StdinData,
		i.env(command), nil)
}

func (i *ipam) del() error {
	if err := i.run("DEL"); err != nil {
		return fmt.Errorf("release addresses of container %s, interface %s: %w", i.args.ContainerID,
			i.args.IfName, err)
	}
	return nil
}

// wrap adds context to err. If err has a CNI error code, the result has the same code.
func wrap(context string, err error) error {
	var e *types.Error
	if errors.As(err, &e) {
		return &types.Error{Code: e.Code, Msg: context + ": " + e.Msg, Details: e.Details}
	}
	return fmt.Errorf("%s: %w", context, err)
}
