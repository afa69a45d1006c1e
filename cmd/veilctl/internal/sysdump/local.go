package sysdump

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/redact"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/pkg/abi"
	"github.com/kubeveil/kubeveil/pkg/version"
)

// localVerbs holds the verbs of veilctl that a dump of one node runs. The output of each is a file.
var localVerbs = [][]string{
	{"version"}, {"status", "--socket", abi.AdminSocket},
	{"status", "--socket", abi.AdminSocket, "-o", "json"},
	{"peers"}, {"mtu"}, {"guard"}, {"host"}, {"policy", "list"}, {"service", "list"},
}

// maxLog bounds the bytes of a log; its end is kept. maxLogs bounds the logs of a node.
const (
	maxLog  = 8 << 20
	maxLogs = 64
)

// localNode holds the sources of a dump of one node.
type localNode struct {
	// veilctl runs a verb of this program and returns what it prints.
	veilctl func(ctx context.Context, args ...string) ([]byte, error)
	socket  string
	// configs are patterns of filepath.Glob for veild's configuration, which is a file of the host
	// or in a ConfigMap volume.
	configs []string
	// logs is a pattern of filepath.Glob for the logs of Kubeveil's containers.
	logs string
}

// thisNode returns the sources of the node that the program runs on. The kubelet writes container
// logs to /var/log/pods/NAMESPACE_POD_UID/CONTAINER/N.log.
func thisNode() localNode {
	return localNode{socket: abi.AdminSocket,
		configs: []string{"/etc/kubeveil/veild.yaml",
			"/var/lib/kubelet/pods/*/volumes/kubernetes.io~*/*/veild.yaml"},
		logs: "/var/log/pods/kube-system_veil*/*/*.log",
		veilctl: func(ctx context.Context, args ...string) ([]byte, error) {
			self, err := os.Executable()
			if err != nil {
				return nil, err
			}
			return exec.CommandContext(ctx, self, args...).CombinedOutput()
		}}
}

// writeLocalDump writes the dump of one node. It needs no API server.
func writeLocalDump(c verb.Call, n localNode, file, root string) error {
	return writeArchive(c, file, func(f *os.File) (*archive, error) {
		a := newArchive(f, root, redact.New(n.publicKeys(c.Ctx), nil), manifest{
			Made: time.Now().UTC().Truncate(time.Second), Version: version.String(),
			Server: "none: this node alone", LeftOut: leftOut,
		})
		a.text("README.txt", "veilctl", []byte("What `veilctl sysdump --local` gathered for a "+
			"bug report about Kubeveil. Begin with status.txt; manifest.json lists\n"+
			"all files, what could not be read, and what was left out. REDACTED stands where a "+
			"secret was.\n"))

		for _, args := range localVerbs {
			fmt.Fprintf(c.Progress, "veilctl %s …\n", strings.Join(args, " "))
			n.verb(c.Ctx, a, args)
		}
		n.addConfig(a)
		fmt.Fprintln(c.Progress, "reading logs …")
		n.addLogs(a)
		return a, nil
	})
}

// publicKeys returns the public keys of the tunnels. It returns none if veild does not answer.
func (n localNode) publicKeys(ctx context.Context) (keys []string) {
	s, err := verb.FetchStatus(ctx, n.socket)
	if err != nil {
		return nil // status.txt reports it
	}
	for _, d := range s.Devices {
		keys = append(keys, d.PublicKey.String())
	}
	for _, p := range s.Peers {
		keys = append(keys, p.PublicKey.String())
	}
	return keys
}

// verb adds the output of a verb as a file. It ignores an error after output, because a verb exits
// with 1 if the node is not well.
func (n localNode) verb(ctx context.Context, a *archive, args []string) {
	ctx, cancel := context.WithTimeout(ctx, dumpLimit)
	defer cancel()
	name := args[0] + ".txt"
	switch {
	case args[len(args)-1] == "json":
		name = args[0] + ".json"
	case !strings.HasPrefix(args[len(args)-1], "/"):
		name = strings.Join(args, "-") + ".txt"
	}
	out, err := n.veilctl(ctx, args...)
	if len(out) > 0 {
		a.text(name, "veilctl "+strings.Join(args, " "), out)
		return
	}
	if err != nil {
		a.lacks(name, err)
	}
}

// addConfig adds the first configuration file of veild that can be read.
func (n localNode) addConfig(a *archive) {
	errs := []error{errors.New("not found")}
	for _, pattern := range n.configs {
		files, _ := filepath.Glob(pattern) // the patterns are well-formed
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err == nil {
				a.text("veild.yaml", file, text)
				return
			}
			errs = append(errs, err)
		}
	}
	a.lacks("veild.yaml", errors.Join(errs...))
}

// addLogs adds the end of each log, of at most maxLogs logs.
func (n localNode) addLogs(a *archive) {
	files, err := filepath.Glob(n.logs)
	if err == nil && len(files) == 0 {
		err = errors.New("no such file: run it on the node itself, not in a pod")
	}
	if err != nil {
		a.lacks("logs", fmt.Errorf("%s: %w", n.logs, err))
		return
	}
	if len(files) > maxLogs {
		a.lacks("logs", fmt.Errorf("%d logs: only the first %d are read", len(files), maxLogs))
		files = files[:maxLogs]
	}

	for _, file := range files {
		container := filepath.Dir(file)
		name := "logs/" + filepath.Base(filepath.Dir(container)) + "-" + filepath.Base(container) +
			"-" + filepath.Base(file)
		if text, err := tail(file, maxLog); err != nil {
			a.lacks(name, err)
		} else {
			a.text(name, file, text)
		}
	}
}

// tail returns at most the last size bytes of a file, from the beginning of a line.
func tail(path string, size int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}

	from := max(0, info.Size()-size)
	text, err := io.ReadAll(io.NewSectionReader(f, from, size))
	if from > 0 {
		_, rest, _ := strings.Cut(string(text), "\n")
		text = []byte(rest)
	}
	return text, err
}
