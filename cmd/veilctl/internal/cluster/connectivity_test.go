package cluster

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb"
	"github.com/kubeveil/kubeveil/cmd/veilctl/internal/verb/verbtest"
)

func TestConnectivityFlags(t *testing.T) {
	tests := []struct {
		name string
		args string
		want string
	}{
		{"one node", "--nodes a", "--nodes a: write two names"},
		{"no port", "--outside 192.0.2.80", "--outside 192.0.2.80: write address:port"},
		{"a name for an address", "--outside example.org:80", "write address:port"},
		{"no time", "--timeout 0s", "--timeout 0s"},
		{"the last port has none after it", "--host-port 65535", "--host-port 65535"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			args := append([]string{"connectivity"}, strings.Fields(tt.args)...)
			err := verbtest.Run(t.Context(), args, &out, &out, Connectivity())
			if !errors.Is(err, verb.ErrUsage) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
}
