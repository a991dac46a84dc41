/* SPDX-License-Identifier: Apache-2.0 */
/* What the verbs transport wants of a card, for who wants to know beforehand (weft net check). */
#ifndef WEFT_NET_VERBS_LIMITS_H
#define WEFT_NET_VERBS_LIMITS_H

#define VERBS_DEPTH     512u /* work requests posted and not ended, to a peer */
#define VERBS_SPARE     16u  /* receives for what is no message */
#define VERBS_DEPTH_MIN (4 * VERBS_SPARE) /* a card with less is of no use */

#endif
