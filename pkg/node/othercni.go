package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kubeveil/kubeveil/pkg/abi"
)

// delegating are plugins that call another plugin for the pod's first interface, by default the
// plugin of the next configuration. Their configurations may sort before ours.
var delegating = []string{"multus", "multus-shim"}

// maxForeign bounds the bytes that are read of another plugin's configuration.
const maxForeign = 1 << 20

// OtherCNI returns a sentence for each CNI configuration in confDir that sorts before ours. A
// runtime uses the first file by name, so it would not use ours. If confDir is missing, the list is
// empty.
func OtherCNI(confDir string) []string {
	entries, err := os.ReadDir(confDir)
	if err != nil {
		return nil // the runtime finds no configuration; writing ours reports the error
	}
	var out []string
	for _, e := range entries {
		if !slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(e.Name())) ||
			e.Name() >= abi.ConflistName {
			continue
		}
		path := filepath.Join(confDir, e.Name())
		plugin := pluginOf(path)
		if slices.Contains(delegating, plugin) {
			continue
		}
		out = append(out, fmt.Sprintf("another network plugin's configuration, %s (%s), sorts "+
			"before %s, so pods' traffic would not be encrypted: remove that plugin, then the "+
			"file, and reboot the node", path, plugin,
			abi.ConflistName))
	}
	return out
}

// pluginOf returns the type of the first plugin in a CNI configuration, for a message.
func pluginOf(path string) string {
	info, err := os.Stat(path)
	if err != nil || info.Size() > maxForeign || !info.Mode().IsRegular() {
		return "unreadable"
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return "unreadable"
	}
	return pluginType(text)
}

func pluginType(text []byte) string {
	var c struct {
		Type    string `json:"type"`
		Plugins []struct {
			Type string `json:"type"`
		} `json:"plugins"`
	}
	if err := json.Unmarshal(text, &c); err != nil {
		return "malformed"
	}
	if len(c.Plugins) > 0 {
		c.Type = c.Plugins[0].Type
	}
	if c.Type == "" || strings.ContainsFunc(c.Type, func(r rune) bool { return r < ' ' }) {
		return "malformed"
	}
	return c.Type
}

// checkOtherCNI returns an error on a node with another network plugin, so that veild does not
// start. If our CNI configuration is already there, it returns nil: veild must start to keep the
// node closed and to report the problem.
func checkOtherCNI(confDir string) error {
	if _, err := os.Stat(ConflistPath(confDir)); err == nil {
		return nil
	}
	var errs []error
	for _, text := range OtherCNI(confDir) {
		errs = append(errs, errors.New(text))
	}
	return errors.Join(errs...)
}
