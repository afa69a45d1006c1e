// Package chart makes the Helm chart of Kubeveil from the kustomizations in manifests/, so that no
// template is written by hand.
//
// A value of the chart that selects a component, such as policy, is an if of the templates. Its
// branches are the lines in which the objects with the component differ from the objects without
// it. Other values stand where the manifests have an example:
//
//	manifests/ ───────────────────┐
//	manifests/ + component policy ┼─► lines of each object ─► edits ─► templates/KIND-NAME.yaml
//	manifests/ + component …      ┘
//
// It promises:
//   - Rendered with the values of a component, the chart has the objects of kustomize with that
//     component, and nothing else. Hooks have annotations of Helm in addition.
//   - CustomResourceDefinitions, ValidatingAdmissionPolicies and their bindings are hooks before
//     all other objects, in the order of the kustomization. Helm 4 applies them again before an
//     upgrade, and never deletes them.
//   - Components whose edits overlap are an error, and so is an example that the manifests lack.
//
// Start reading at Files.
package chart
