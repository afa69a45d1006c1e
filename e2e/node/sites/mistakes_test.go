package sites_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kubeveil/kubeveil/internal/errtest"
	"github.com/kubeveil/kubeveil/internal/nettest"
	"github.com/kubeveil/kubeveil/pkg/cluster"
	"github.com/kubeveil/kubeveil/pkg/site/link"
)

// Seven more sites have no credentials, or those of b. Each costs itself only.
func (p pair) moreSites(ctx context.Context, t *testing.T) {
	for i := range cluster.MaxSites - 1 {
		p.a.knows(&side{name: fmt.Sprint("s", i), pods: nettest.Prefixes(fmt.Sprintf("10.%d.0.0/16",
			100+i)), nodes: nettest.Prefixes(fmt.Sprintf("203.0.113.%d/32", i))})
	}
	text, err := os.ReadFile(filepath.Join(p.a.credentials, "b"))
	errtest.Must(t, err)
	errtest.Must(t, os.WriteFile(filepath.Join(p.a.credentials, "s0"), text, 0o600))
	p.a.stop()
	p.a.start(ctx)

	for _, s := range p.a.sites {
		kind, want := "Readable", "False NotRead: there are no credentials for site "+s.Name+": put"
		switch s.Name {
		case "b":
			kind, want = "Ready", "True"
		case "s0":
			kind, want = "Overlap", "True Overlap: 10.245.0.0/16 of s0 overlaps 10.245.0.0/16 of "+
				"site b"
		}
		until(ctx, t, "the condition "+kind+" of site "+s.Name, func() error {
			c, err := p.a.conditions(ctx, links, "", s.Name)
			if err == nil && !strings.HasPrefix(c[kind], want) {
				err = fmt.Errorf("conditions %q", c)
			}
			return err
		})
	}
	p.b.export(ctx, t, "late", false, "10.245.0.9")
	until(ctx, t, "an export of b is served", func() error {
		_, addrs, err := p.a.served(ctx, "late")
		if err == nil && !slices.Equal(addrs["b"], []string{"10.245.0.9"}) {
			err = fmt.Errorf("addresses %v", addrs)
		}
		return err
	})
	p.b.unexport(ctx, t, "late")
}

func (p pair) withoutService(ctx context.Context, t *testing.T) {
	p.b.exportOnly(ctx, t, "none")
	until(ctx, t, "the exports have conditions", func() error {
		none, err := p.b.conditions(ctx, exports, "shop", "none")
		if err != nil || !strings.HasPrefix(none["Valid"], "False NoService: there is no Service "+
			"shop/none") {
			return fmt.Errorf("conditions %q: %w", none, err)
		}
		web, err := p.b.conditions(ctx, exports, "shop", "web")
		if err != nil || !strings.HasPrefix(web["Valid"], "True Valid") ||
			!strings.HasPrefix(web["Ready"], "True Exported") {
			return fmt.Errorf("conditions %q: %w", web, err)
		}
		return nil
	})
	p.b.unexport(ctx, t, "none")
}

// Wrong credentials are shown, and what is mirrored stays.
func (p pair) credentials(ctx context.Context, t *testing.T) {
	namespace := link.NamespacePrefix + "a"
	for _, c := range []struct {
		name, account, namespace, want string
		ca                             []byte
	}{
		{"another CA", "reader", namespace, "certificate signed by unknown authority",
			p.a.Control.Config.CAData},
		{"a token without rights", "stranger", namespace, "this identity may not get siterecords",
			p.b.Control.Config.CAData},
		{"a namespace that does not exist", "reader", "kubeveil-site-none",
			"names the namespace kubeveil-site-none", p.b.Control.Config.CAData},
		{"good ones", "reader", namespace, "", p.b.Control.Config.CAData},
	} {
		p.a.trust(ctx, t, p.b, c.account, c.namespace, c.ca)
		until(ctx, t, c.name, func() error {
			conditions, err := p.a.conditions(ctx, links, "", "b")
			if got := conditions["Readable"]; err != nil || !strings.Contains(got, c.want) ||
				strings.HasPrefix(got, "True") != (c.want == "") {
				return fmt.Errorf("conditions %q: %w", conditions, err)
			}
			return nil
		})

		if _, addrs, err := p.a.served(ctx, "web"); err != nil || len(addrs["b"]) != 2 {
			t.Errorf("%s: web is served at %v: %v", c.name, addrs, err)
		}
	}
}
