package cluster

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kubeveil/kubeveil/e2e/cmd/kvlab/internal/program"
	"github.com/kubeveil/kubeveil/e2e/lab/buildtree"
	"github.com/kubeveil/kubeveil/e2e/vm"
	"github.com/kubeveil/kubeveil/internal/commandline"
)

// dirFlag names the flag for the folder of the cluster, which every verb has.
const dirFlag = "dir"

// Commands returns the verbs, and the hidden verb that up runs in the background.
func Commands() []*cobra.Command {
	background := upCommand("serve", "Own the cluster until this process ends",
		func(dir string, o vm.ClusterConfig, _ []string) error { return serve(dir, o) })
	background.Hidden = true
	return []*cobra.Command{
		upCommand("up", "Start a cluster of virtual machines and keep it",
			func(dir string, _ vm.ClusterConfig, given []string) error { return up(dir, given) }),
		sshCommand(), kubectlCommand(), downCommand(), background,
	}
}

// flagsOf returns a verb's flags, with the flag for the cluster's folder and its value.
func flagsOf(verb string) (*pflag.FlagSet, *string) {
	flags := commandline.New("kvlab " + verb)
	return flags, flags.String(dirFlag, "", "`folder` of the cluster (default: out/vm/cluster)")
}

// upCommand returns a verb with the flags of up. given holds the flags of the command line, except
// the folder.
func upCommand(verb, short string,
	run func(dir string, o vm.ClusterConfig, given []string) error) *cobra.Command {
	flags, dir := flagsOf(verb)
	var o vm.ClusterConfig
	upFlags(flags, &o)
	return program.Verb(short, flags, upUsage, func(cmd *cobra.Command, args []string) error {
		if err := errors.Join(nothing(args), checkUp(o)); err != nil {
			return program.Refuse(cmd, err)
		}
		var given []string
		cmd.Flags().Visit(func(f *pflag.Flag) {
			if f.Name != dirFlag {
				given = append(given, "--"+f.Name+"="+f.Value.String())
			}
		})
		return in(cmd, *dir, func(dir string) error { return run(dir, o, given) })
	})
}

func downCommand() *cobra.Command {
	flags, dir := flagsOf("down")
	return program.Verb("End the cluster of up and report the frames of its leak oracle", flags,
		downUsage,
		func(cmd *cobra.Command, args []string) error {
			if err := nothing(args); err != nil {
				return program.Refuse(cmd, err)
			}
			return in(cmd, *dir, down)
		})
}

func sshCommand() *cobra.Command {
	flags, dir := flagsOf("ssh")
	cmd := program.Verb("Open a shell on a node of the cluster of up, or run one command", flags,
		sshUsage, func(cmd *cobra.Command, args []string) error {
			return in(cmd, *dir, func(dir string) error { return ssh(dir, args) })
		})
	cmd.Flags().SetInterspersed(false) // flags after the node belong to the command
	return cmd
}

// kubectlCommand returns the verb kubectl. A shell cannot complete its flags: kubectl reads them,
// except a first --dir.
func kubectlCommand() *cobra.Command {
	return &cobra.Command{
		Use: "kubectl [--dir DIR] ARGUMENTS", Short: "Run kubectl as the cluster's administrator",
		Example:            "  kvlab kubectl get pods -A -o wide",
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			dir := ""
			if len(args) > 1 && args[0] == "--"+dirFlag {
				dir, args = args[1], args[2:]
			}
			return in(cmd, dir, func(dir string) error {
				s, err := read(dir)
				if err != nil {
					return err
				}
				return attach(append(s.Kubectl, args...))
			})
		},
	}
}

// nothing refuses arguments.
func nothing(args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("unexpected argument %q", args[0])
	}
	return nil
}

// in calls run with the folder of the cluster. An empty dir means the default folder. in reports
// the error of run and returns the exit status: for ssh and kubectl, the status of that program.
func in(cmd *cobra.Command, dir string, run func(dir string) error) error {
	err := func() error {
		if dir == "" {
			root, err := buildtree.Root()
			if err != nil {
				return err
			}
			dir = filepath.Join(root, "out/vm/cluster")
		}
		path, err := filepath.Abs(dir)
		if err != nil {
			return err
		}
		return run(path)
	}()

	var ended *exec.ExitError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &ended):
		return program.Status(ended.ExitCode())
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s: %v\n", cmd.CommandPath(), err)
	return program.Status(1)
}
