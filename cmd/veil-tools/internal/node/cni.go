package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/kubeveil/kubeveil/cmd/veil-tools/internal/verb"
)

// cniResult is the output of cni-call: the result of ADD, or a plugin's error with its code.
type cniResult struct {
	Network string          `json:"network,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Code    uint            `json:"code,omitempty"`
	Error   string          `json:"error,omitempty"`
	Millis  float64         `json:"millis"`
}

// attachments parses the value of --valid.
func attachments(list string) []types.GCAttachment {
	valid := []types.GCAttachment{}
	for _, s := range strings.Split(list, ",") {
		if id, ifname, ok := strings.Cut(s, "/"); ok {
			valid = append(valid, types.GCAttachment{ContainerID: id, IfName: ifname})
		}
	}
	return valid
}

// loadNetwork reads the configuration of a directory whose file name is the first in order, as
// container runtimes do.
func loadNetwork(dir string) (*libcni.NetworkConfigList, error) {
	files, err := libcni.ConfFiles(dir, []string{".conflist"})
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no network configuration in %s", dir)
	}
	slices.Sort(files)
	return libcni.ConfListFromFile(files[0])
}

// cni calls CNI plugins as a container runtime does, with libcni.
func cni(ctx context.Context, args []string) (any, error) {
	flags := flagsOf("cni-call")
	act := flags.String("verb", "", "add, del, check, gc or status")
	conf := flags.String("conf", "/etc/cni/net.d", "directory of network configurations")
	path := flags.String("path", "", "directories of plugins, separated by colons")
	cache := flags.String("cache", "", "directory of cached results")
	caps := flags.String("caps", "", "capability arguments, a JSON object")
	valid := flags.String("valid", "",
		"for gc: valid attachments as containerID/interface, separated by commas")
	more := flags.String("args", "", "further CNI_ARGS as KEY=VALUE, separated by semicolons")
	timeout := flags.Timeout(30*time.Second, "the call")
	rt := libcni.RuntimeConf{Args: [][2]string{{"IgnoreUnknown", "1"}}}
	flags.StringVar(&rt.ContainerID, "id", "", "container id")

	flags.StringVar(&rt.NetNS, "netns", "", "path of the pod's network namespace")
	flags.StringVar(&rt.IfName, "ifname", "eth0", "interface in the pod")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}

	if *caps != "" {
		if err := json.Unmarshal([]byte(*caps), &rt.CapabilityArgs); err != nil {
			return nil, fmt.Errorf("--caps: %w", err)
		}
	}

	for pair := range strings.SplitSeq(*more, ";") {
		if key, value, ok := strings.Cut(pair, "="); ok {
			rt.Args = append(rt.Args, [2]string{key, value})
		}
	}

	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	list, err := loadNetwork(*conf)
	if err != nil {
		return cniResult{Error: err.Error()}, err
	}

	c := libcni.NewCNIConfigWithCacheDir(filepath.SplitList(*path), *cache, nil)
	start := time.Now()
	result, err := run(ctx, c, list, &rt, *act, *valid)
	out := cniResult{Network: list.Name, Millis: verb.Millis(time.Since(start))}
	if result != nil {
		out.Result, _ = json.Marshal(result)
	}

	if err != nil {
		out.Error = err.Error()
		var coded *types.Error
		if errors.As(err, &coded) {
			out.Code = coded.Code
		}
	}

	return out, err
}

func run(ctx context.Context, c *libcni.CNIConfig, list *libcni.NetworkConfigList,
	rt *libcni.RuntimeConf, act, valid string) (types.Result, error) {
	switch act {
	case "add":
		return c.AddNetworkList(ctx, list, rt)
	case "del":
		return nil, c.DelNetworkList(ctx, list, rt)
	case "check":
		return nil, c.CheckNetworkList(ctx, list, rt)
	case "gc":
		return nil, c.GCNetworkList(ctx, list, &libcni.GCArgs{ValidAttachments: attachments(valid)})
	case "status":
		return nil, c.GetStatusNetworkList(ctx, list)
	}
	return nil, fmt.Errorf("--verb: unknown verb %q", act)
}
