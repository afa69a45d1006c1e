package main

import (
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubeveil/kubeveil/pkg/policy/keeper"
	"github.com/kubeveil/kubeveil/pkg/remote"
	"github.com/kubeveil/kubeveil/pkg/telemetry"
)

// namesLimit bounds the wait of a shell for the names that it completes.
const namesLimit = 2 * time.Second

// completeNames completes at most `most` arguments of cmd by names that list returns. A shell shows
// no errors, so it offers no names if list fails.
func completeNames(cmd *cobra.Command, most int, list func(call) ([]string, error)) {
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string,
		_ string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= most {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, stop := context.WithTimeout(cmd.Context(), namesLimit)
		defer stop()
		names, err := list(call{ctx: ctx})
		if err != nil {
			cobra.CompDebugln(err.Error(), false)
		}
		names = slices.DeleteFunc(names, func(n string) bool { return slices.Contains(args, n) })
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// volumeNames returns the names of a cluster's volumes.
func volumeNames(access *remote.Access) func(call) ([]string, error) {
	return func(c call) (names []string, err error) {
		_, store, err := volumesOf(access)
		if err != nil {
			return nil, err
		}
		objects, err := store.Objects(c.ctx)
		for _, o := range objects {
			names = append(names, o.State.Volume)
		}
		return names, err
	}
}

// namesOnNode is completeNames for cmd with the flag --socket. It returns cmd.
func namesOnNode(cmd *cobra.Command, most int,
	list func(c call, socket string) ([]string, error)) *cobra.Command {
	completeNames(cmd, most, func(c call) ([]string, error) {
		return list(c, cmd.Flag("socket").Value.String())
	})
	return cmd
}

// serviceNames returns the names of the services in the table of this node.
func serviceNames(c call, socket string) (names []string, err error) {
	views, err := allServices(c, socket)
	for _, v := range views {
		if v.Service.Namespace != "" {
			names = append(names, v.Service.String())
		}
	}
	return names, err
}

// judgedPods returns the names of the pods of this node that policies select.
func judgedPods(c call, socket string) (names []string, err error) {
	var l keeper.List
	if err := fetchInto(c, socket, telemetry.PoliciesPath, &l); err != nil {
		return nil, err
	}
	for _, p := range l.Policies {
		names = append(names, p.Pods...)
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}
