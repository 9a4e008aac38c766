"""A zoo of clean and poisoned classifiers, and how well the backdoor scanner tells them apart."""
