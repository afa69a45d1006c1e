package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

// alerts returns the table rows for the alerts of a component in manifests/components.
func alerts(component string) (string, error) {
	file := filepath.Join(root, "manifests/components", component, "prometheusrule.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	var rules struct {
		Spec struct {
			Groups []struct {
				Rules []struct {
					Alert, Expr, For    string
					Labels, Annotations map[string]string
				}
			}
		}
	}
	if err := yaml.Unmarshal(text, &rules); err != nil {
		return "", fmt.Errorf("%s: %w", file, err)
	}

	var rows []string
	for _, g := range rules.Spec.Groups {
		for _, r := range g.Rules {
			expr := strings.Join(strings.Fields(r.Expr), " ")
			fires := "`" + strings.ReplaceAll(expr, "{ ", "{") + "`"
			if r.For != "" {
				fires += " for " + r.For
			}
			means := r.Annotations["description"]
			if page := r.Annotations["runbook"]; page != "" {
				means += " [More](" + relative(page) + ")"
			}
			fires = strings.ReplaceAll(fires, "|", `\|`)
			rows = append(rows, fmt.Sprintf("| `%s` | %s | %s | %s |", r.Alert,
				r.Labels["severity"], fires, means))
		}
	}
	if len(rows) == 0 {
		return "", fmt.Errorf("%s has no alerts", file)
	}
	return strings.Join(rows, "\n"), nil
}

// relative converts a path from the root of the tree to a link target in a page of docs/reference.
func relative(path string) string {
	if name, ok := strings.CutPrefix(path, folder+"/"); ok {
		return name
	}
	return "../" + strings.TrimPrefix(path, "docs/")
}
