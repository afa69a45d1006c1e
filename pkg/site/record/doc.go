// Package record is the language in which two clusters talk: the content of SiteRecords, with the
// labels and annotations of services that they carry.
//
//	cluster b: Encode ─► SiteRecords in a namespace of b ─► cluster a: Decode
//
// A SiteRecord states one thing: a node, an exported service with its endpoints, or, named head,
// the ranges of the cluster. Its name follows from its content, so two records never state
// different things about one node or service.
//
// Promises:
//   - Decode bounds each part, and refuses a record that is malformed. It does not judge addresses,
//     because that needs the reader's configuration; package mirror does.
//   - Decode ignores fields that it does not know, because the other cluster may be newer.
//
// Start reading at Spec.
package record
