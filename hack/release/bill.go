package main

import (
	"cmp"
	"context"
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
)

// description is what hack/image writes of an image.
type description struct {
	Digest string             `json:"digest"`
	Images map[string]content `json:"images"`
}

type content struct {
	Root     string          `json:"root"`
	Programs []string        `json:"programs"`
	Debian   []debianPackage `json:"debian"`
}

type debianPackage struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	SHA256  string `json:"sha256"`
}

// bill is a software bill of materials in the format CycloneDX 1.6, as far as this program writes
// it.
type bill struct {
	Format       string       `json:"bomFormat"`
	Spec         string       `json:"specVersion"`
	Version      int          `json:"version"`
	Metadata     metadata     `json:"metadata"`
	Components   []component  `json:"components"`
	Dependencies []dependency `json:"dependencies"`
}

type metadata struct {
	Component component `json:"component"`
}

type component struct {
	Ref     string `json:"bom-ref"`
	Type    string `json:"type"`
	Name    string `json:"name"`
	Version string `json:"version"`
	PURL    string `json:"purl,omitempty"`
	Hashes  []hash `json:"hashes,omitempty"`
}

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

type dependency struct {
	Ref string   `json:"ref"`
	On  []string `json:"dependsOn,omitempty"`
}

// ourModule is the module of this tree.
const ourModule = "github.com/kubeveil/kubeveil"

// billSuffix is the end of the names of all bills of a release.
const billSuffix = ".cdx.json"

// programBill returns the bill of a program that Go's tools built: its modules and the standard
// library. tool is cyclonedx-gomod, which reads them from the program. name is the name of the
// program in the bill.
func programBill(ctx context.Context, tool, name, version, path string) (b bill, err error) {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return b, err
	}
	args := []string{"bin", "-json", "-noserial", "-notimestamp", "-std", "-short-purls"}
	// Programs of other modules have the version of their module.
	if info.Main.Path == ourModule {
		args = append(args, "-version", version)
	}
	out, err := command(ctx, filepath.Dir(path), tool, append(args, path)...)
	if err != nil {
		return b, err
	}
	if err := json.Unmarshal([]byte(out), &b); err != nil {
		return b, fmt.Errorf("cyclonedx-gomod bin %s: %w", path, err)
	}

	sum, err := sumOf(path)
	if err != nil {
		return b, err
	}
	// The tool gives the name of the module, which several programs of an image share.
	c := &b.Metadata.Component
	module := c.Ref
	*c = component{Ref: name, Type: "application", Name: name, Version: c.Version, PURL: c.PURL,
		Hashes: []hash{{"SHA-256", sum}}}
	for i := range b.Dependencies {
		if b.Dependencies[i].Ref == module {
			b.Dependencies[i].Ref = name
		}
	}
	return b, nil
}

// imageBill returns the bill of an image: its programs, all their modules, and packages of Debian.
func imageBill(image component, arch string, programs []bill, packages []debianPackage) bill {
	b := bill{Format: "CycloneDX", Spec: "1.6", Version: 1, Metadata: metadata{image}}
	top := dependency{Ref: image.Ref}
	components, dependencies := map[string]component{}, map[string]dependency{}
	for _, p := range programs {
		c := p.Metadata.Component
		top.On = append(top.On, c.Ref)
		for _, c := range append(p.Components, c) {
			components[c.Ref] = c
		}
		for _, d := range p.Dependencies {
			dependencies[d.Ref] = d
		}
	}
	for _, p := range packages {
		ref := debianURL(p, arch)
		top.On = append(top.On, ref)
		components[ref] = component{Ref: ref, Type: "library", Name: p.Name, Version: p.Version,
			PURL: ref, Hashes: []hash{{"SHA-256", p.SHA256}}}
	}
	dependencies[top.Ref] = top

	for _, ref := range slices.Sorted(maps.Keys(components)) {
		b.Components = append(b.Components, components[ref])
	}
	for _, ref := range slices.Sorted(maps.Keys(dependencies)) {
		b.Dependencies = append(b.Dependencies, dependencies[ref])
	}
	return b
}

// debianURL returns the package URL of a package of Debian.
func debianURL(p debianPackage, arch string) string {
	return fmt.Sprintf("pkg:deb/debian/%s@%s?arch=%s", p.Name, url.QueryEscape(p.Version), arch)
}

// writeBills writes into dir the bills of an image for each architecture, and of those of its
// programs that the release has as files.
func writeBills(ctx context.Context, o order, tool, image, dir string, d description) error {
	for _, arch := range slices.Sorted(maps.Keys(d.Images)) {
		c := d.Images[arch]
		var all []bill
		for _, p := range c.Programs {
			b, err := programBill(ctx, tool, filepath.Base(p), o.version, filepath.Join(c.Root, p))
			if err != nil {
				return err
			}
			all = append(all, b)
			if image == "kubeveil" && slices.Contains(programs, filepath.Base(p)) {
				name := filepath.Base(p) + "-linux-" + arch + billSuffix
				if err := writeJSON(filepath.Join(dir, name), b); err != nil {
					return err
				}
			}
		}

		name := o.imageName(image)
		b := imageBill(component{Ref: name, Type: "container", Name: name,
			Version: cmp.Or(d.Digest, o.version)}, arch, all, c.Debian)
		file := filepath.Join(dir, image+"-linux-"+arch+billSuffix)
		if err := writeJSON(file, b); err != nil {
			return err
		}
	}
	return nil
}

// writeJSON writes a value as indented JSON.
func writeJSON(path string, v any) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}
