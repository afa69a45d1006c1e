package benchcluster

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/nettest"
)

func TestMain(m *testing.M) { os.Exit(nettest.Run(m)) }

func TestParseMTUs(t *testing.T) {
	for name, tt := range map[string]struct {
		list    string
		want    []int
		wantErr string
	}{
		"the usual":      {"8896,1500", []int{8896, 1500}, ""},
		"one":            {" 1500 ", []int{1500}, ""},
		"growing":        {"1500,8896", nil, "largest first"},
		"twice the same": {"1500,1500", nil, "largest first"},
		"too small":      {"1200", nil, "is not an MTU"},
		"a word":         {"jumbo", nil, "is not an MTU"},
		"nothing":        {"", nil, "is not an MTU"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseMTUs(tt.list)
			if !slices.Equal(got, tt.want) {
				t.Errorf("%v, want %v", got, tt.want)
			}
			if (err == nil) != (tt.wantErr == "") ||
				err != nil && !strings.Contains(err.Error(), tt.wantErr) {
				t.Errorf("error %v, want %q", err, tt.wantErr)
			}
		})
	}
}
