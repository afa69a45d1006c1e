package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
)

// statement is an in-toto Statement v1 with a SLSA Provenance v1 predicate, as far as this program
// writes them: https://slsa.dev/spec/v1.0/provenance. It has no time, so that two builds are equal.
type statement struct {
	Type          string     `json:"_type"`
	Subject       []resource `json:"subject"`
	PredicateType string     `json:"predicateType"`
	Predicate     predicate  `json:"predicate"`
}

// resource is an in-toto ResourceDescriptor.
type resource struct {
	Name   string            `json:"name,omitempty"`
	URI    string            `json:"uri,omitempty"`
	Digest map[string]string `json:"digest,omitempty"`
}

type predicate struct {
	BuildDefinition struct {
		BuildType  string            `json:"buildType"`
		Parameters map[string]string `json:"externalParameters"`
		Resolved   []resource        `json:"resolvedDependencies"`
	} `json:"buildDefinition"`
	RunDetails struct {
		Builder struct {
			ID string `json:"id"`
		} `json:"builder"`
	} `json:"runDetails"`
}

const (
	repository = "https://" + ourModule
	provenance = "provenance.json"
)

// writeProvenance writes provenance.json into dir. Its subjects are all other files of dir. It
// claims no more than that a person ran the command: no build service vouches for the machine.
func writeProvenance(o order, dir string, about summary, built map[string]description) error {
	s := statement{Type: "https://in-toto.io/Statement/v1",
		PredicateType: "https://slsa.dev/provenance/v1"}
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, f := range files {
		sum, err := sumOf(filepath.Join(dir, f.Name()))
		if err != nil {
			return err
		}
		s.Subject = append(s.Subject, resource{Name: f.Name(),
			Digest: map[string]string{"sha256": sum}})
	}

	d := &s.Predicate.BuildDefinition
	d.BuildType = repository + "/blob/" + o.version + "/docs/design/0041-release.md"
	d.Parameters = map[string]string{"version": o.version, "name": o.name,
		"command": "make release VERSION=" + o.version + " NAME=" + o.name}
	d.Resolved = []resource{
		{URI: "git+" + repository + "@refs/tags/" + o.version,
			Digest: map[string]string{"gitCommit": about.Commit}},
		{Name: "Go", URI: "pkg:golang/std@" + about.Go},
	}
	packages := map[string]resource{}
	for _, b := range built {
		for arch, c := range b.Images {
			for _, p := range c.Debian {
				uri := debianURL(p, arch)
				packages[uri] = resource{URI: uri, Digest: map[string]string{"sha256": p.SHA256}}
			}
		}
	}
	for _, uri := range slices.Sorted(maps.Keys(packages)) {
		d.Resolved = append(d.Resolved, packages[uri])
	}
	s.Predicate.RunDetails.Builder.ID = repository + "/blob/" + o.version + "/hack/release"

	return writeJSON(filepath.Join(dir, provenance), s)
}
